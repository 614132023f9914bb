// Package peercerts gives the members of an embedded etcd their certificates, where the settings name none.
//
// The first member makes a CA in its data directory, and its own certificate with it. The CA signs members only. Every
// other member has its CA and certificate from a join token, which `carillon cluster join-token` prints on the host of
// the first one, and which is put into its data directory as the file join-token. The agent takes it at its start, and
// deletes the file.
//
// A token is a secret: it holds the private key of its member. It needs no server, so members get their certificates
// before there is an etcd, and nothing listens for callers without a certificate. That an agent refuses it after an
// hour keeps old copies from being used by mistake; it does not take back the key in them.
//
// The key of the CA stays on one host. A member could otherwise sign itself the certificate of another one, and could
// not be shut out by removing it. Without that host nobody gets a new certificate, while those that there are go on.
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

const (
	dirName   = "peer-certs" // in the data directory
	tokenName = "join-token" // in the data directory
	caName    = "ca"         // files are called as carillon cert calls them, which can show and renew them
	peerName  = "peer"

	caLife     = 20 * 365 * 24 * time.Hour
	memberLife = 5 * 365 * 24 * time.Hour

	tokenPrefix  = "carillon-join-1." // the number is that of the format
	maxTokenFile = 64 << 10
)

// TokenLife is how long a token is accepted, unless somebody says otherwise.
const TokenLife = time.Hour

var (
	// ErrNoCA says that a data directory does not have the CA.
	ErrNoCA = errors.New("has no CA of peers")
	// ErrNoCertificate says that a member has no certificate yet, nor a token.
	ErrNoCertificate = errors.New("has no certificate yet")
)

// Member is who a certificate is for.
type Member struct {
	Name string
	Host string // of its peer URL
}

// Files are where a member with this data directory has its certificates.
func Files(dataDir string) certs.Files {
	dir := filepath.Join(dataDir, dirName)
	cert, key := certs.Paths(dir, peerName)
	ca, _ := certs.Paths(dir, caName)
	return certs.Files{Cert: cert, Key: key, CA: ca}
}

// TokenPath is where a member with this data directory looks for its token.
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

// MakeCA makes the CA. It is for the first member of a new cluster, and must be called once in its life.
func MakeCA(dataDir string, now time.Time) error {
	dir := filepath.Join(dataDir, dirName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}

	_, pair, err := certs.NewAuthority(certs.Request{Kind: certs.KindAuthority, Name: "Carillon peers", For: caLife, Now: now})
	if err != nil {
		return err
	}

	return pair.Write(dir, caName)
}

// Ensure sees to it that a member has a certificate: it takes the token, if there is one, and renews what the CA of
// this data directory has signed. done says what it did, for the log; warning, what it could not do and can do without.
func Ensure(dataDir string, m Member, now time.Time) (done, warning string, err error) {
	done, err = takeToken(dataDir, m, now)
	present := readMember(dataDir, m)
	if err != nil && present == nil {
		return "", "", fmt.Errorf("join token %s: %w", TokenPath(dataDir), err)
	}
	if err != nil {
		return "", fmt.Sprintf("cannot use the join token %s, and keeps the certificate that is there: %v", TokenPath(dataDir), err), nil
	}

	// A third of its life is left for a restart to happen in.
	if present != nil && now.Before(present.NotAfter.Add(-memberLife/3)) {
		return done, "", nil
	}

	ca, err := readCA(dataDir)
	switch {
	case errors.Is(err, ErrNoCA) && present != nil:
		return done, "", nil // the log tells before it ends
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

// readMember is the certificate that a member has; nil if there is none, or if the other members would refuse it for
// what it says.
func readMember(dataDir string, m Member) *x509.Certificate {
	source, err := certs.Open(Files(dataDir))
	if err != nil || !isUsableFor(source.Leaf(), m) {
		return nil
	}
	return source.Leaf()
}

func isUsableFor(c *x509.Certificate, m Member) bool {
	return c != nil && certs.CanServe(c, m.Host) == nil && certs.CanCall(c) == nil
}

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

func issuePair(ca *certs.Authority, m Member, now time.Time) (certs.Pair, error) {
	r := certs.Request{Kind: certs.KindNode, Name: m.Name, For: memberLife, Now: now}
	if ip := net.ParseIP(m.Host); ip != nil {
		r.IPs = []net.IP{ip}
	} else {
		r.Hosts = []string{m.Host}
	}

	return ca.Issue(r)
}

// token is what is in one.
type token struct {
	Member  string    `json:"member"`
	Expires time.Time `json:"expires"`
	CA      []byte    `json:"ca"` // PEM
	Cert    []byte    `json:"cert"`
	Key     []byte    `json:"key"`
}

// NewToken makes a token for a member, with a certificate and a key of its own. It needs the CA in the data directory.
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

// takeToken puts what is in the token where Files says, and deletes the token.
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
	// The certificate comes last. A crash before that leaves no certificate that the CA has not signed, and the token
	// is still there for the next start.
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

// parseToken reads a token. No error has a part of it.
func parseToken(text []byte, m Member, now time.Time) (t token, err error) {
	encoded, ok := strings.CutPrefix(strings.TrimSpace(string(text)), tokenPrefix)
	b, err := base64.RawURLEncoding.DecodeString(encoded)
	if !ok || err != nil || json.Unmarshal(b, &t) != nil {
		return t, errors.New("is not what carillon cluster join-token prints, or not all of it")
	}

	switch {
	case t.Member != m.Name:
		return t, fmt.Errorf("is for the member %q, and this is %q", t.Member, m.Name)
	case !now.Before(t.Expires):
		return t, fmt.Errorf("has expired at %s: make another one", t.Expires.Format(time.RFC3339))
	}

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

// readPrivately reads a file that nobody but this user, or root, can have written: whoever writes it decides whom the
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
