// Package buckettest starts servers with the API of S3, for tests.
package buckettest

import (
	"bytes"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// Bucket is the only bucket of a storage.
const Bucket = "backups"

// Storage is a server with one bucket, in memory.
type Storage struct {
	testing.TB
	backend *s3mem.Backend
	server  *httptest.Server
	ca      string

	mu    sync.Mutex
	fault Fault
}

// Fault may answer a request instead of the server. It returns whether it has.
type Fault func(w http.ResponseWriter, r *http.Request) bool

// Start starts a storage, which stops when the test ends.
func Start(t testing.TB) *Storage {
	t.Helper()

	s := &Storage{TB: t, backend: s3mem.New()}
	s.must(s.backend.CreateBucket(Bucket))
	api := gofakes3.New(s.backend).Server()

	s.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		fault := s.fault
		s.mu.Unlock()

		if fault == nil || !fault(w, r) {
			api.ServeHTTP(w, r)
		}
	}))
	s.server.Config.ErrorLog = log.New(io.Discard, "", 0) // faults end connections
	s.server.StartTLS()
	t.Cleanup(s.server.Close)

	s.ca = filepath.Join(t.TempDir(), "ca.pem")
	s.must(os.WriteFile(s.ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.server.Certificate().Raw}), 0o600))

	return s
}

func (s *Storage) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// Env returns a variable of the environment with which clients find the storage.
func (s *Storage) Env(name string) string { return s.Environment()[name] }

// Environment returns this environment.
func (s *Storage) Environment() map[string]string {
	return map[string]string{
		"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ENDPOINT_URL_S3": s.server.URL, "AWS_REGION": "us-east-1",
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_CA_BUNDLE": s.ca,
	}
}

// Inject sets the fault of all requests from now on; nil: none.
func (s *Storage) Inject(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// Names returns the names of all objects.
func (s *Storage) Names() (names []string) {
	s.Helper()

	list, err := s.backend.ListBucket(Bucket, nil, gofakes3.ListBucketPage{})
	s.must(err)
	for _, o := range list.Contents {
		names = append(names, o.Key)
	}

	return names
}

// Put puts an object.
func (s *Storage) Put(name string, content []byte) {
	s.Helper()

	meta := map[string]string{"Last-Modified": time.Now().UTC().Format(http.TimeFormat)}
	_, err := s.backend.PutObject(Bucket, name, meta, bytes.NewReader(content), int64(len(content)), nil)
	s.must(err)
}

// Delete deletes an object.
func (s *Storage) Delete(name string) {
	s.Helper()

	_, err := s.backend.DeleteObject(Bucket, name)
	s.must(err)
}
