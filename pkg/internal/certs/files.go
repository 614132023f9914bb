package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// Files are the PEM files of one end of TLS. Cert and Key must both be set, or both be empty for no certificate.
// Cert may contain the chain to the CA, with the own certificate first. An empty CA means the system's CAs.
type Files struct{ Cert, Key, CA string }

// The parts of Files, as FileError and Notice name them.
const (
	PartCert = "cert"
	PartKey  = "key"
	PartCA   = "ca"
)

// FileError states which of the files cannot be used.
type FileError struct {
	Part string // cert, key or ca
	Path string
	Err  error
}

func (e *FileError) Error() string { return fmt.Sprintf("%s: %v", e.Path, e.Err) }

// Unwrap returns the error without the path.
func (e *FileError) Unwrap() error { return e.Err }

// Source holds the content of Files as of when it could last be used. It is safe for concurrent use.
type Source struct {
	turn  chan struct{} // holds a token while a goroutine reads the files
	pair  *part[tls.Certificate]
	roots *part[roots]
}

// roots are the CAs, as a pool and individually.
type roots struct {
	pool *x509.CertPool
	list []*x509.Certificate
}

// Open reads files. Its error is a *FileError.
func Open(f Files) (*Source, error) {
	if (f.Cert == "") != (f.Key == "") {
		return nil, &FileError{PartKey, f.Cert + f.Key, errors.New("set both the certificate and its key, or neither")}
	}

	s := &Source{
		turn:  make(chan struct{}, 1),
		pair:  &part[tls.Certificate]{name: PartCert, files: []file{{PartCert, f.Cert}, {PartKey, f.Key}}},
		roots: &part[roots]{name: PartCA, files: []file{{PartCA, f.CA}}},
	}
	s.pair.parse = func(b [][]byte) (*tls.Certificate, error) { return parsePair(f, b[0], b[1]) }
	s.roots.parse = func(b [][]byte) (*roots, error) { return parseRoots(f, b[0]) }
	now := time.Now()
	if err := s.pair.readChanged(now); err != nil {
		return nil, err
	}
	if err := s.roots.readChanged(now); err != nil {
		return nil, err
	}

	s.pair.changed, s.roots.changed = false, false

	return s, nil
}

// parsePair parses a certificate and its key.
func parsePair(f Files, cert, key []byte) (*tls.Certificate, error) {
	if _, err := Parse(cert); err != nil {
		return nil, &FileError{PartCert, f.Cert, err}
	}

	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, &FileError{PartKey, f.Key, fmt.Errorf("is not the key of %s: %w", f.Cert, err)}
	}

	return &pair, nil
}

// parseRoots parses the CAs.
func parseRoots(f Files, b []byte) (*roots, error) {
	list, err := Parse(b)
	if err != nil {
		return nil, &FileError{PartCA, f.CA, err}
	}

	r := &roots{x509.NewCertPool(), list}

	for _, c := range list {
		r.pool.AddCert(c)
	}

	return r, nil
}

// maxHandshakeWait is how long a handshake waits for another one that reads the files. It matters only if the file
// system does not respond.
const maxHandshakeWait = 500 * time.Millisecond

// refreshParts reads the files, and uses their content if it is valid. It does not use the result of a read that
// began before it was called, because that may miss a later change.
func (s *Source) refreshParts() {
	select {
	case s.turn <- struct{}{}:
	case <-time.After(maxHandshakeWait):
		return
	}

	defer func() { <-s.turn }()

	now := time.Now()
	_, _ = s.pair.readChanged(now), s.roots.readChanged(now) // Look reports the errors
}

// Notice is a change that Look reports.
type Notice struct {
	Part string // cert, for the pair, or ca
	Err  error  // why the content cannot be used; nil: it is in use
}

// mismatchTolerance is how long certificate and key may differ before Look reports it. They are written one after
// the other.
const mismatchTolerance = 5 * time.Second

// Look reads the files, as each handshake does, and reports what is new since it was last called. It reports that
// files cannot be used only after mismatchTolerance, and once. Call it periodically.
func (s *Source) Look() []Notice {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()

	now := time.Now()
	_, _ = s.pair.readChanged(now), s.roots.readChanged(now)

	return append(s.pair.newNotices(now), s.roots.newNotices(now)...)
}

type file struct{ part, path string }

// part is the value that is parsed from one or two files. Without paths it has no value.
type part[T any] struct {
	name  string
	files []file
	parse func(contents [][]byte) (*T, error) // returns an error if the contents are not valid or do not match
	value atomic.Pointer[T]                   // nil: not read yet, or no paths

	contents [][]byte  // from which value was parsed
	changed  bool      // not reported yet
	failing  error     // why the current content cannot be used
	since    time.Time // when failing began
	logged   string    // the failure that was reported last; "": none
}

// readChanged reads the files. This takes about 30 µs, a tenth of a handshake, and does not depend on the
// timestamps of a file system.
func (p *part[T]) readChanged(now time.Time) error {
	if p.files[0].path == "" {
		return nil
	}

	contents, err := readFiles(p.files)
	var value *T
	if err == nil {
		if p.value.Load() != nil && equalContents(contents, p.contents) {
			p.failing = nil
			return nil
		}
		value, err = p.parse(contents)
	}

	if err != nil {
		if p.failing == nil {
			p.since = now
		}
		p.failing = err
		return err
	}

	p.value.Store(value)
	p.contents, p.changed, p.failing = contents, true, nil

	return nil
}

// newNotices returns what has not been reported yet.
func (p *part[T]) newNotices(now time.Time) []Notice {
	switch {
	case p.failing != nil && now.Sub(p.since) >= mismatchTolerance && p.logged != p.failing.Error():
		p.logged = p.failing.Error()
		return []Notice{{p.name, p.failing}}
	case p.failing == nil && (p.changed || p.logged != ""):
		p.changed, p.logged = false, ""
		return []Notice{{Part: p.name}}
	}

	return nil
}

// maxFile is how many bytes a file may have.
const maxFile = 1 << 20

// readFiles reads the files of a part.
func readFiles(files []file) (contents [][]byte, err error) {
	for _, f := range files {
		if info, err := os.Stat(f.path); err == nil && (!info.Mode().IsRegular() || info.Size() > maxFile) {
			return nil, &FileError{f.part, f.path, fmt.Errorf("is not a file of at most %d bytes", maxFile)}
		}

		b, err := os.ReadFile(f.path)
		if err != nil {
			return nil, &FileError{f.part, f.path, withoutPath(err)}
		}

		contents = append(contents, b)
	}

	return contents, nil
}

// withoutPath returns a file system error without the path, which FileError contains.
func withoutPath(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// equalContents reports whether the files have the same content.
func equalContents(a, b [][]byte) bool {
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}

	return true
}
