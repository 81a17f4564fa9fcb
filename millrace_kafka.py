"""The distribution's name. What is imported is `millrace`.

It is there for pytest, which looks for what a plugin's distribution has at its top, to rewrite its asserts;
where it finds nothing there it looks one level down, finds `__main__`, and warns in every run of every user
that it cannot rewrite that.
"""
