// An S3 server of other people's making (versitygw over a directory), for tests: it checks signatures and checksums, honours conditions and
// keeps its objects over a restart. Started by tests/live/s3_server.py, and in a container by docker-compose.yml.
//
// Only what a test needs is wired, so that it builds in less than a minute: no admin API, no events, one account.
package main

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/s3api"
	"github.com/versity/versitygw/s3api/middlewares"
)

const (
	connectionsMax = 4096
	requestsMax    = 1024
	partsMax       = 10000
	copyBytesMax   = 5 << 30 // as S3 has it
	healthPath     = "/health"
	probeWait      = 2 * time.Second
)

func main() {
	folder := flag.String("dir", "", "where buckets are kept")
	listen := flag.String("listen", "", "HOST:PORT")
	access := flag.String("access", "test", "the one access key")
	secret := flag.String("secret", "secret", "its secret")
	made := flag.String("make", "", "buckets that there are from the start, by commas")
	xattr := flag.Bool("xattr", false, "keep attributes with the objects, in extended attributes of their files")
	probed := flag.String("probe", "", "HOST:PORT: ask the server there whether it serves, and end")
	flag.Parse()
	if *probed != "" {
		os.Exit(probe(*probed))
	}
	// As the first process of a container it is not ended by a signal that it does not take. What is written is renamed into its place when it
	// is whole, so the end may come at any time.
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-ended
		os.Exit(0)
	}()
	fmt.Fprintln(os.Stderr, serve(*folder, *listen, *access, *secret, strings.Split(*made, ","), *xattr))
	os.Exit(1)
}

// attributesOf gives where attributes of objects are kept. In files beside them, for not every file system a test runs on has extended
// attributes; then an object's attributes are there a moment before it is, so that of two that put it on a condition the one that loses may
// find nothing. In extended attributes both come at once, as in S3.
func attributesOf(buckets, sidecar string, isXattr bool) (meta.MetadataStorer, posix.PosixOpts, error) {
	options := posix.PosixOpts{CopyObjectThreshold: copyBytesMax}
	if isXattr {
		attributes := meta.XattrMeta{}
		return attributes, options, attributes.Test(buckets)
	}
	options.SideCarDir = sidecar
	attributes, err := meta.NewSideCar(sidecar)
	return attributes, options, err
}

// probe gives the exit code: 0 where the server answers.
func probe(address string) int {
	client := http.Client{Timeout: probeWait}
	answer, err := client.Get("http://" + address + healthPath)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		fmt.Fprintln(os.Stderr, answer.Status)
		return 1
	}
	return 0
}

func serve(folder, listen, access, secret string, made []string, isXattr bool) error {
	buckets, sidecar := filepath.Join(folder, "buckets"), filepath.Join(folder, "attributes")
	for _, path := range []string{buckets, sidecar} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
	}
	for _, bucket := range made {
		// A directory is a bucket, owned by the one account.
		if err := os.MkdirAll(filepath.Join(buckets, bucket), 0o755); err != nil {
			return err
		}
	}
	attributes, options, err := attributesOf(buckets, sidecar, isXattr)
	if err != nil {
		return err
	}
	store, err := posix.New(buckets, attributes, options)
	if err != nil {
		return err
	}
	root := auth.Account{Access: access, Secret: secret, Role: auth.RoleAdmin}
	server, err := s3api.New(
		store, middlewares.RootUserConfig{Access: access, Secret: secret}, "us-east-1", auth.NewIAMServiceSingle(root),
		nil, nil, nil, nil,
		s3api.WithQuiet(), s3api.WithKeepAlive(), s3api.WithHealth(healthPath), s3api.WithConcurrencyLimiter(connectionsMax, requestsMax), s3api.WithMpMaxParts(partsMax),
	)
	if err != nil {
		return err
	}
	return server.ServeMultiPort([]string{listen})
}
