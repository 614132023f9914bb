// Package peercerts gives the members of an embedded etcd their certificates if the settings name none.
//
// The first member creates a CA in its data directory, and its own certificate with it. The CA signs only members.
// Every other member gets CA and certificate from a join token, which `carillon cluster join-token` prints on the
// host of the first member. An operator stores it in the member's data directory as the file join-token. The agent
// reads it when it starts, and deletes the file.
//
// A token is a secret: it contains the private key of its member. It needs no server, so members get their
// certificates before there is an etcd, and no port is open for callers without a certificate. Agents reject a
// token after an hour, which prevents the accidental use of old copies. It does not revoke the key in them.
//
// The key of the CA stays on one host. Otherwise, a member could sign a certificate for itself in the name of
// another one, and removing it would not exclude it. Without that host no member gets a new certificate, and
// existing ones remain valid.
package peercerts

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/certs"
)

// dirName and tokenName are in the data directory.
const (
	dirName   = "peer-certs"
	tokenName = "join-token"
	caName    = "ca" // names of files as in carillon cert, which can show and renew them
	peerName  = "peer"

	caLife     = 20 * 365 * 24 * time.Hour
	memberLife = 5 * 365 * 24 * time.Hour

	tokenPrefix  = "carillon-join-1." // the number is that of the format
	maxTokenFile = 64 << 10
)

// TokenLife is how long a token is accepted by default.
const TokenLife = time.Hour

var (
	// ErrNoCA means that a data directory does not contain the CA.
	ErrNoCA = errors.New("has no CA of peers")
	// ErrNoCertificate means that a member has neither a certificate nor a token.
	ErrNoCertificate = errors.New("has no certificate yet")
)

// Member is the member that a certificate is for.
type Member struct {
	Name string
	Host string // of its peer URL
}

// Files returns where a member with this data directory has its certificates.
func Files(dataDir string) certs.Files {
	dir := filepath.Join(dataDir, dirName)
	cert, key := certs.Paths(dir, peerName)
	ca, _ := certs.Paths(dir, caName)
	return certs.Files{Cert: cert, Key: key, CA: ca}
}

// TokenPath returns where a member with this data directory expects its token.
func TokenPath(dataDir string) string { return filepath.Join(dataDir, tokenName) }

// HasAny reports whether the data directory has a certificate, a CA that can sign one, or a token with one.
func HasAny(dataDir string) bool {
	_, caKey := certs.Paths(filepath.Join(dataDir, dirName), caName)
	for _, path := range []string{Files(dataDir).Cert, caKey, TokenPath(dataDir)} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}

	return false
}

// CAName is the name of the CA in the certificates of members.
const CAName = "Carillon peers"

// MakeCA creates the CA. It must be called only once, by the first member of a new cluster.
func MakeCA(dataDir string, now time.Time) error {
	dir := filepath.Join(dataDir, dirName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}

	_, pair, err := certs.NewAuthority(certs.Request{Kind: certs.KindAuthority, Name: CAName, For: caLife, Now: now})
	if err != nil {
		return err
	}

	return pair.Write(dir, caName)
}

// Ensure ensures that a member has a certificate. It uses the token, if there is one, and renews what the CA of
// this data directory has signed. done describes what it did, for the log. warning describes a problem that does
// not prevent the start.
func Ensure(dataDir string, m Member, now time.Time) (done, warning string, err error) {
	// A token that cannot be used is an error only if there is no certificate yet.
	done, err = takeToken(dataDir, m, now)
	present := readMember(dataDir, m)
	if err != nil && present == nil {
		return "", "", fmt.Errorf("join token %s: %w", TokenPath(dataDir), err)
	}
	if err != nil {
		return "", fmt.Sprintf("cannot use the join token %s, and keeps the certificate that is there: %v", TokenPath(dataDir), err), nil
	}

	// Renew when a third of the lifetime is left, so that a restart is likely to happen in time.
	if present != nil && now.Before(present.NotAfter.Add(-memberLife/3)) {
		return done, "", nil
	}

	// Issue a certificate with the CA, if this is the member that has it.
	ca, err := readCA(dataDir)
	switch {
	case errors.Is(err, ErrNoCA) && present != nil:
		return done, "", nil // the log warns before it expires
	case errors.Is(err, ErrNoCA):
		return "", "", ErrNoCertificate
	case err != nil:
		return "", "", err
	}

	pair, err := issuePair(ca, m, now)
	if err != nil {
		return "", "", err
	}
	if err := pair.Write(filepath.Join(dataDir, dirName), peerName); err != nil {
		return "", "", err
	}

	return "made the certificate for the other members of etcd", "", nil
}

// readMember returns the certificate that a member has, or nil if there is none, or if other members would reject
// it because of its names or its usage.
func readMember(dataDir string, m Member) *x509.Certificate {
	source, err := certs.Open(Files(dataDir))
	if err != nil || !isUsableFor(source.Leaf(), m) {
		return nil
	}
	return source.Leaf()
}

// isUsableFor reports whether other members accept a certificate for a member.
func isUsableFor(c *x509.Certificate, m Member) bool {
	return c != nil && certs.CanServe(c, m.Host) == nil && certs.CanCall(c) == nil
}

// readCA reads the CA of a data directory; ErrNoCA if there is none.
func readCA(dataDir string) (*certs.Authority, error) {
	pair, err := certs.ReadPair(filepath.Join(dataDir, dirName), caName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoCA
	}
	if err != nil {
		return nil, err
	}

	ca, err := certs.ReadAuthority(pair)
	if err != nil {
		return nil, fmt.Errorf("the CA of peers in %s: %w", filepath.Join(dataDir, dirName), err)
	}

	return ca, nil
}

// issuePair signs a certificate for a member.
func issuePair(ca *certs.Authority, m Member, now time.Time) (certs.Pair, error) {
	r := certs.Request{Kind: certs.KindNode, Name: m.Name, For: memberLife, Now: now}
	if ip := net.ParseIP(m.Host); ip != nil {
		r.IPs = []net.IP{ip}
	} else {
		r.Hosts = []string{m.Host}
	}

	return ca.Issue(r)
}

// token is the content of a join token.
type token struct {
	Member  string    `json:"member"`
	Expires time.Time `json:"expires"`
	CA      []byte    `json:"ca"` // PEM
	Cert    []byte    `json:"cert"`
	Key     []byte    `json:"key"`
}

// NewToken creates a token for a member, with a new certificate and key. The data directory must contain the CA.
func NewToken(dataDir string, m Member, validFor time.Duration, now time.Time) (secret string, expires time.Time, err error) {
	ca, err := readCA(dataDir)
	if err != nil {
		return "", time.Time{}, err
	}

	pair, err := issuePair(ca, m, now)
	if err != nil {
		return "", time.Time{}, err
	}

	roots, err := os.ReadFile(Files(dataDir).CA)
	if err != nil {
		return "", time.Time{}, err
	}

	t := token{Member: m.Name, Expires: now.Add(validFor).UTC().Truncate(time.Second), CA: roots, Cert: pair.Cert, Key: pair.Key}
	b, err := json.Marshal(t)
	if err != nil {
		return "", time.Time{}, err
	}

	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b), t.Expires, nil
}

// takeToken stores the content of the token where Files returns, and deletes the token.
func takeToken(dataDir string, m Member, now time.Time) (done string, err error) {
	path := TokenPath(dataDir)
	text, err := readPrivately(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}

	t, err := parseToken(text, m, now)
	if err != nil {
		return "", err
	}

	dir := filepath.Join(dataDir, dirName)
	if _, caKey := certs.Paths(dir, caName); fileExists(caKey) {
		return "", errors.New("this data directory has the CA of peers itself, and needs no token: delete it")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}

	// Write the certificate last. After a crash before that, there is no certificate that the CA has not signed,
	// and the token is still there for the next start.
	if err := certs.WriteFile(Files(dataDir).CA, t.CA, 0o644); err != nil {
		return "", err
	}
	if err := (certs.Pair{Cert: t.Cert, Key: t.Key}).Write(dir, peerName); err != nil {
		return "", err
	}
	if err := os.Remove(path); err != nil {
		return "", err
	}

	return "took the certificate for the other members of etcd from the join token, and deleted it", nil
}

func fileExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// parseToken parses a token. Its errors contain no part of it.
func parseToken(text []byte, m Member, now time.Time) (t token, err error) {
	encoded, ok := strings.CutPrefix(strings.TrimSpace(string(text)), tokenPrefix)
	b, err := base64.RawURLEncoding.DecodeString(encoded)
	if !ok || err != nil || json.Unmarshal(b, &t) != nil {
		return t, errors.New("is not what carillon cluster join-token prints, or not all of it")
	}

	// The token must be for this member, and recent.
	switch {
	case t.Member != m.Name:
		return t, fmt.Errorf("is for the member %q, and this is %q", t.Member, m.Name)
	case !now.Before(t.Expires):
		return t, fmt.Errorf("has expired at %s: make another one", t.Expires.Format(time.RFC3339))
	}

	// Key, certificate and CA must belong together, and the other members must accept the certificate.
	pair, err := tls.X509KeyPair(t.Cert, t.Key)
	if err != nil {
		return t, errors.New("has a certificate and a key that do not fit each other")
	}

	list, err := certs.Parse(t.Cert)
	if err != nil {
		return t, fmt.Errorf("its certificate: %w", err)
	}

	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(t.CA) || len(pair.Certificate) == 0 {
		return t, errors.New("has no CA")
	}
	if _, err := list[0].Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
		return t, fmt.Errorf("its certificate: %w", err)
	}
	if !isUsableFor(list[0], m) {
		return t, fmt.Errorf("is for a member at %s, and this one's peer URL has the host %s", strings.Join(certs.Names(list[0]), ", "), m.Host)
	}

	return t, nil
}

// readPrivately reads a file that only this user, or root, can have written. Its content determines which peers the
// member trusts.
func readPrivately(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}

	defer f.Close()

	info, err := f.Stat()
	if err != nil {
		return nil, err
	}

	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() || info.Mode().Perm()&0o022 != 0 || int(owner.Uid) != os.Geteuid() && owner.Uid != 0 {
		return nil, errors.New("must be a file owned by this user or root that nobody else can write to")
	}

	b, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	if err == nil && len(b) > maxTokenFile {
		err = fmt.Errorf("has more than %d bytes", maxTokenFile)
	}

	return bytes.TrimSpace(b), err
}
