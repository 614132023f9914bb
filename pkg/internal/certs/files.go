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

// Files are PEM files of one end of TLS. Cert and Key go together, or are both
// empty: no certificate. Cert may hold the chain to the CA, the own one first. An
// empty CA is the system's.
type Files struct{ Cert, Key, CA string }

// The parts of Files, as a FileError names them.
const (
	PartCert = "cert"
	PartKey  = "key"
	PartCA   = "ca"
)

// FileError says which of the files cannot be used.
type FileError struct {
	Part string // cert, key or ca
	Path string
	Err  error
}

func (e *FileError) Error() string { return fmt.Sprintf("%s: %v", e.Path, e.Err) }

// Unwrap is what is wrong with the file.
func (e *FileError) Unwrap() error { return e.Err }

// Source keeps what is in Files, as it was when it could last be used. It is safe
// for concurrent use.
type Source struct {
	turn  chan struct{} // holds a token while somebody looks at the files
	pair  *part[tls.Certificate]
	roots *part[roots]
}

// roots are CAs: as one pool, and each.
type roots struct {
	pool *x509.CertPool
	list []*x509.Certificate
}

// Open reads files. Its error is a *FileError.
func Open(f Files) (*Source, error) {
	if (f.Cert == "") != (f.Key == "") {
		return nil, &FileError{PartKey, f.Cert + f.Key, errors.New("certificate and key are both given, or none")}
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

// maxHandshakeWait is how long a handshake waits for another that looks at the files, on a
// file system that does not answer.
const maxHandshakeWait = 500 * time.Millisecond

// refreshParts takes what the files hold now, if it can be used: not less than what they
// held when it was called, as what another has begun to read might be.
func (s *Source) refreshParts() {
	select {
	case s.turn <- struct{}{}:
	case <-time.After(maxHandshakeWait):
		return
	}

	defer func() { <-s.turn }()

	now := time.Now()
	_, _ = s.pair.readChanged(now), s.roots.readChanged(now) // Look tells
}

// Notice is what Look finds.
type Notice struct {
	Part string // cert, for the pair, or ca
	Err  error  // why what is there cannot be used; nil: it was taken
}

// mismatchTolerance is how long files may not fit each other before that is a fault: they
// are written one after the other.
const mismatchTolerance = 5 * time.Second

// Look takes what the files hold now, as each handshake does, and tells what is
// new since it was called last; what cannot be used only when it has been so for
// five seconds, and once. It is to be called now and then.
func (s *Source) Look() []Notice {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()

	now := time.Now()
	_, _ = s.pair.readChanged(now), s.roots.readChanged(now)

	return append(s.pair.newNotices(now), s.roots.newNotices(now)...)
}

type file struct{ part, path string }

// part is what is made of one or two files; none if they have no paths.
type part[T any] struct {
	name  string
	files []file
	parse func(contents [][]byte) (*T, error)
	value atomic.Pointer[T]

	contents [][]byte // that value was made of
	changed  bool     // since somebody was told
	failing  error    // why what is there cannot be used
	since    time.Time
	told     string // of which failure somebody was told
}

// readChanged reads the files. It costs some 30 µs, a tenth of a handshake, and needs no
// faith in what a file system says of times.
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

func (p *part[T]) newNotices(now time.Time) []Notice {
	switch {
	case p.failing != nil && now.Sub(p.since) >= mismatchTolerance && p.told != p.failing.Error():
		p.told = p.failing.Error()
		return []Notice{{p.name, p.failing}}
	case p.failing == nil && (p.changed || p.told != ""):
		p.changed, p.told = false, ""
		return []Notice{{Part: p.name}}
	}

	return nil
}

const maxFile = 1 << 20

func readFiles(files []file) (contents [][]byte, err error) {
	for _, f := range files {
		if info, err := os.Stat(f.path); err == nil && (!info.Mode().IsRegular() || info.Size() > maxFile) {
			return nil, &FileError{f.part, f.path, fmt.Errorf("is no file of at most %d bytes", maxFile)}
		}

		b, err := os.ReadFile(f.path)
		if err != nil {
			return nil, &FileError{f.part, f.path, withoutPath(err)}
		}

		contents = append(contents, b)
	}

	return contents, nil
}

// withoutPath is an error of the file system without the path, which is told anyway.
func withoutPath(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

func equalContents(a, b [][]byte) bool {
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}

	return true
}
