/* The walk over a batch's unpacked records, compiled: what records.py says in Python, at some nanoseconds a record.
 *
 *   varint length of the rest | attributes i8 | varlong timestamp delta | varint offset delta
 *   varint key length (-1 null) key | varint value length (-1 null) value
 *   varint header count, each: varint length key, varint length (-1 null) value
 *
 * Optional: record_walk.py has the same in Python and tests hold the two against each other. Keeps no reference to
 * the bytes; reads none beyond their end; takes no memory but the answer. Large inputs are walked without the
 * interpreter's lock, so that a thread may do it.
 */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#define VERSION 1
#define INDEXES_MAX 100
#define UNLOCKED_FROM_BYTES (256 << 10)
#define NO_TIMESTAMP (-1)

enum fault { SOUND, CUT_OFF, WRONG_SIZE, BAD_NUMBER, WRONG_DELTA, BAD_HEADERS, BYTES_LEFT };

typedef struct {
    const uint8_t *at, *end;
    int is_bad; /* a number is cut off, or longer than its kind may be */
} cursor;

typedef struct {
    int64_t base_timestamp, earliest, latest;
    int needs_keys;
    /* what was found */
    int64_t index, max_timestamp;
    int keyless_count, untimely_count;
    uint32_t keyless[INDEXES_MAX], untimely[INDEXES_MAX];
} walk_state;

/* A number and where it ends; nowhere when it is longer than its kind may be, or cut off. By value, so that the
 * cursor of the caller stays in registers. */
typedef struct {
    uint64_t value;
    const uint8_t *end;
} number;

static number read_long_number(const uint8_t *at, const uint8_t *end, int shift_max, int last_bits) {
    number found = {0, NULL};
    for (int shift = 0; at < end; shift += 7) {
        uint8_t byte = *at++;
        found.value |= (uint64_t)(byte & 0x7F) << shift;
        if (shift == shift_max && byte >> last_bits) break;
        if (byte < 0x80) {
            found.end = at;
            break;
        }
    }
    return found;
}

static inline uint64_t read_rest(cursor *c, int shift_max, int last_bits) {
    number found = read_long_number(c->at, c->end, shift_max, last_bits);
    if (found.end == NULL) {
        c->is_bad = 1;
        return 0;
    }
    c->at = found.end;
    return found.value;
}

/* A signed varint of 32 bits. */
static inline int32_t read_i32(cursor *c) {
    uint32_t value;
    if (c->end - c->at >= 2) {
        value = c->at[0];
        if (value < 0x80)
            c->at++;
        else if (c->at[1] < 0x80) {
            value = (value & 0x7F) | (uint32_t)c->at[1] << 7;
            c->at += 2;
        } else
            value = (uint32_t)read_rest(c, 28, 4);
    } else
        value = (uint32_t)read_rest(c, 28, 4);
    return (int32_t)(value >> 1) ^ -(int32_t)(value & 1);
}

/* A signed varint of 64 bits. */
static inline int64_t read_i64(cursor *c) {
    uint64_t value;
    if (c->end - c->at >= 2 && c->at[0] < 0x80)
        value = *c->at++;
    else
        value = read_rest(c, 63, 1);
    return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

/* Steps over as many bytes as the varint before them says; 0 when there are fewer. */
static inline int skip_bytes(cursor *c, int32_t length) {
    if (length <= 0) return 1;
    if (length > c->end - c->at) return 0;
    c->at += length;
    return 1;
}

static enum fault skip_headers(cursor *c) {
    int32_t count = read_i32(c);
    if (count == 0 || c->is_bad) return SOUND;
    if (count < 0 || count > (c->end - c->at) / 2) return BAD_HEADERS;
    while (count-- > 0) {
        int32_t length = read_i32(c);
        if (c->is_bad || length < 0 || !skip_bytes(c, length)) return BAD_HEADERS;
        length = read_i32(c);
        if (c->is_bad || !skip_bytes(c, length)) return BAD_HEADERS;
    }
    return SOUND;
}

/* One record, of which `c` is exactly what its length names: its timestamp delta and whether it has a key. */
static inline enum fault walk_record(cursor *c, int64_t index, int64_t *time_delta, int *is_keyless) {
    if (c->at == c->end) return WRONG_SIZE;
    c->at++; /* attributes: no bit means anything */
    *time_delta = read_i64(c);
    int32_t delta = read_i32(c);
    int32_t key_length = read_i32(c);
    if (c->is_bad) return BAD_NUMBER;
    if (delta != index) return WRONG_DELTA;
    *is_keyless = key_length < 0;
    if (!skip_bytes(c, key_length)) return WRONG_SIZE;
    int32_t value_length = read_i32(c);
    if (c->is_bad) return BAD_NUMBER;
    if (!skip_bytes(c, value_length)) return WRONG_SIZE;
    enum fault fault = skip_headers(c);
    if (fault != SOUND) return fault;
    if (c->is_bad) return BAD_NUMBER;
    return c->at == c->end ? SOUND : WRONG_SIZE;
}

static void note_record(walk_state *s, int64_t index, int is_keyless) {
    if (is_keyless) {
        if (s->keyless_count < INDEXES_MAX) s->keyless[s->keyless_count++] = (uint32_t)index;
    } else if (s->untimely_count < INDEXES_MAX)
        s->untimely[s->untimely_count++] = (uint32_t)index;
}

/* What is looked at for each record lies in locals: bytes may alias anything, so a state in memory would be read anew. */
static enum fault walk_all(const uint8_t *data, Py_ssize_t size, int64_t count, walk_state *s) {
    const uint8_t *at = data, *end = data + size;
    const uint64_t base = (uint64_t)s->base_timestamp;
    const int64_t earliest = s->earliest, latest = s->latest;
    const int needs_keys = s->needs_keys;
    int64_t max_timestamp = NO_TIMESTAMP, index;
    enum fault fault = SOUND;
    for (index = 0; index < count; index++) {
        cursor c = {at, end, 0};
        int32_t length = read_i32(&c);
        if (c.is_bad) {
            fault = BAD_NUMBER;
            break;
        }
        if (length < 0 || length > end - c.at) {
            fault = length < 0 ? WRONG_SIZE : CUT_OFF;
            break;
        }
        at = c.end = c.at + length;
        int64_t time_delta = 0;
        int is_keyless = 0;
        fault = walk_record(&c, index, &time_delta, &is_keyless);
        if (fault != SOUND) break;
        int64_t time = (int64_t)(base + (uint64_t)time_delta);
        is_keyless &= needs_keys;
        if (is_keyless || ((time < earliest || time > latest) && time != NO_TIMESTAMP)) note_record(s, index, is_keyless);
        if (time > max_timestamp) max_timestamp = time;
    }
    s->index = index;
    s->max_timestamp = max_timestamp;
    return fault == SOUND && at != end ? BYTES_LEFT : fault;
}

static PyObject *list_of(const uint32_t *indexes, int count) {
    PyObject *list = PyList_New(count);
    for (int place = 0; list != NULL && place < count; place++) {
        PyObject *index = PyLong_FromUnsignedLong(indexes[place]);
        if (index == NULL || PyList_SetItem(list, place, index) < 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

static PyObject *answer_of(enum fault fault, walk_state *s) {
    if (fault == SOUND && !s->keyless_count && !s->untimely_count) return PyLong_FromLongLong(s->max_timestamp);
    PyObject *keyless = list_of(s->keyless, s->keyless_count), *untimely = list_of(s->untimely, s->untimely_count);
    if (keyless == NULL || untimely == NULL) {
        Py_XDECREF(keyless);
        Py_XDECREF(untimely);
        return NULL;
    }
    return Py_BuildValue("(iLNN)", (int)fault, (long long)s->index, keyless, untimely);
}

static PyObject *walk(PyObject *module, PyObject *args) {
    Py_buffer view;
    long long count, base_timestamp, earliest, latest;
    walk_state s;
    enum fault fault;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*LLLLp:walk", &view, &count, &base_timestamp, &earliest, &latest, &s.needs_keys))
        return NULL;
    s.base_timestamp = base_timestamp;
    s.earliest = earliest;
    s.latest = latest;
    s.keyless_count = s.untimely_count = 0;
    if (view.len < UNLOCKED_FROM_BYTES)
        fault = walk_all(view.buf, view.len, count, &s);
    else {
        Py_BEGIN_ALLOW_THREADS
        fault = walk_all(view.buf, view.len, count, &s);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&view);
    return answer_of(fault, &s);
}

static PyMethodDef methods[] = {
    {"walk", walk, METH_VARARGS, "walk(records, count, base_timestamp, earliest, latest, needs_keys): see record_walk.py"},
    {NULL, NULL, 0, NULL},
};

static int add_constants(PyObject *module) {
    return PyModule_AddIntConstant(module, "VERSION", VERSION);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_constants}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_record_walk", "The walk over a batch's records, compiled.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__record_walk(void) { return PyModuleDef_Init(&definition); }
