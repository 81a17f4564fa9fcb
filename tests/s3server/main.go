// An S3 server of other people's making (versitygw over a directory), for tests: it checks signatures and checksums, honours conditions and
// keeps its objects over a restart. Started by tests/live/s3_server.py.
//
// Only what a test needs is wired, so that it builds in less than a minute: no admin API, no events, one account.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

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
)

func main() {
	folder := flag.String("dir", "", "where buckets are kept")
	listen := flag.String("listen", "", "HOST:PORT")
	access := flag.String("access", "test", "the one access key")
	secret := flag.String("secret", "secret", "its secret")
	flag.Parse()
	fmt.Fprintln(os.Stderr, serve(*folder, *listen, *access, *secret))
	os.Exit(1)
}

func serve(folder, listen, access, secret string) error {
	// Attributes in files beside the objects: not every file system a test runs on has extended attributes.
	buckets, sidecar := filepath.Join(folder, "buckets"), filepath.Join(folder, "attributes")
	for _, path := range []string{buckets, sidecar} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
	}
	attributes, err := meta.NewSideCar(sidecar)
	if err != nil {
		return err
	}
	store, err := posix.New(buckets, attributes, posix.PosixOpts{SideCarDir: sidecar, CopyObjectThreshold: copyBytesMax})
	if err != nil {
		return err
	}
	root := auth.Account{Access: access, Secret: secret, Role: auth.RoleAdmin}
	server, err := s3api.New(
		store, middlewares.RootUserConfig{Access: access, Secret: secret}, "us-east-1", auth.NewIAMServiceSingle(root),
		nil, nil, nil, nil,
		s3api.WithQuiet(), s3api.WithKeepAlive(), s3api.WithConcurrencyLimiter(connectionsMax, requestsMax), s3api.WithMpMaxParts(partsMax),
	)
	if err != nil {
		return err
	}
	return server.ServeMultiPort([]string{listen})
}
