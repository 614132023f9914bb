package peercerts_test

import (
	"crypto/x509"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/internal/peercerts"
)

const day = 24 * time.Hour

var (
	now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	n1  = peercerts.Member{Name: "n1", Host: "10.0.0.1"}
	n2  = peercerts.Member{Name: "n2", Host: "host-b.example.com"}
)

// first returns the data directory of a first member, with CA and certificate.
func first(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if _, _, err := peercerts.Ensure(dir, n1, now); !errors.Is(err, peercerts.ErrNoCertificate) {
		t.Fatalf("without a CA and a token: %v", err)
	}

	if err := peercerts.MakeCA(dir, now); err != nil {
		t.Fatal(err)
	}

	if done, _, err := peercerts.Ensure(dir, n1, now); err != nil || done == "" {
		t.Fatal(done, err)
	}

	return dir
}

func newToken(t *testing.T, dir string, m peercerts.Member) string {
	t.Helper()
	token, expires, err := peercerts.NewToken(dir, m, peercerts.TokenLife, now)
	if err != nil || !expires.Equal(now.Add(time.Hour)) {
		t.Fatal(expires, err)
	}

	return token
}

func place(t *testing.T, dir, token string) {
	t.Helper()
	if err := os.WriteFile(peercerts.TokenPath(dir), []byte(token+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func leaf(t *testing.T, dir string) *x509.Certificate {
	t.Helper()
	s, err := certs.Open(peercerts.Files(dir))
	if err != nil {
		t.Fatal(err)
	}

	return s.Leaf()
}

// Verifies: G50
func TestEnsure_MembersTrustEachOther(t *testing.T) {
	from, to := first(t), t.TempDir()
	place(t, to, newToken(t, from, n2))

	if done, warning, err := peercerts.Ensure(to, n2, now); err != nil || done == "" || warning != "" {
		t.Fatal(done, warning, err)
	}

	if _, err := os.Lstat(peercerts.TokenPath(to)); !os.IsNotExist(err) {
		t.Error("the token, a secret, is still there")
	}

	ca, err := os.ReadFile(peercerts.Files(from).CA)
	if err != nil {
		t.Fatal(err)
	}

	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)

	for dir, m := range map[string]peercerts.Member{from: n1, to: n2} {
		for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
			if _, err := leaf(t, dir).Verify(x509.VerifyOptions{Roots: roots, DNSName: m.Host, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use}}); err != nil {
				t.Errorf("%s: %v", m.Name, err)
			}
		}

		info, err := os.Stat(peercerts.Files(dir).Key)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the key of %s: %v %v", m.Name, info.Mode(), err)
		}
	}

	if _, _, err := peercerts.NewToken(to, n1, time.Hour, now); !errors.Is(err, peercerts.ErrNoCA) {
		t.Errorf("a member that is not the first makes tokens: %v", err)
	}
}

// Verifies: G50
func TestEnsure_RefusesTokensThatAreNotItsOwn(t *testing.T) {
	from := first(t)
	token := newToken(t, from, n2)
	for name, tc := range map[string]struct {
		token string
		as    peercerts.Member
		at    time.Time
		mode  os.FileMode
		want  string
	}{
		"of another member":        {token, peercerts.Member{Name: "n3", Host: n2.Host}, now, 0o600, `is for the member "n2"`},
		"for another host":         {token, peercerts.Member{Name: "n2", Host: "10.0.0.9"}, now, 0o600, "peer URL has the host 10.0.0.9"},
		"expired":                  {token, n2, now.Add(time.Hour), 0o600, "has expired"},
		"cut off":                  {token[:len(token)-40], n2, now, 0o600, "not all of it"},
		"something else":           {"swordfish", n2, now, 0o600, "is not what carillon cluster join-token prints"},
		"writable by anybody else": {token, n2, now, 0o666, "nobody else can write to"},
	} {
		dir := t.TempDir()
		place(t, dir, tc.token)

		if err := os.Chmod(peercerts.TokenPath(dir), tc.mode); err != nil {
			t.Fatal(err)
		}

		_, _, err := peercerts.Ensure(dir, tc.as, tc.at)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		} else if strings.Contains(err.Error(), tc.token) || strings.Contains(err.Error(), "PRIVATE") {
			t.Errorf("%s: the error reveals the secret", name)
		}

		if _, err := os.Lstat(peercerts.Files(dir).Cert); !os.IsNotExist(err) {
			t.Errorf("%s: it was taken", name)
		}
	}
}

// Verifies: G50
func TestEnsure_Renews(t *testing.T) {
	from, to := first(t), t.TempDir()
	place(t, to, newToken(t, from, n2))

	if _, _, err := peercerts.Ensure(to, n2, now); err != nil {
		t.Fatal(err)
	}

	// The member with the CA renews its own certificate when a third of its lifetime is left, and not earlier.
	before := leaf(t, from)
	late := before.NotAfter.Add(-30 * day)

	if done, _, err := peercerts.Ensure(from, n1, now.Add(365*day)); err != nil || done != "" || !leaf(t, from).Equal(before) {
		t.Errorf("it renews too early: %q %v", done, err)
	}

	if done, _, err := peercerts.Ensure(from, n1, late); err != nil || done == "" || !leaf(t, from).NotAfter.After(late.Add(365*day)) {
		t.Errorf("it does not renew: %q %v", done, err)
	}

	// Other members keep their certificate until they get a token. They report a token that they cannot use.
	theirs := leaf(t, to)

	if done, warning, err := peercerts.Ensure(to, n2, late); err != nil || done+warning != "" {
		t.Error(done, warning, err)
	}

	place(t, to, newToken(t, from, n2))

	if _, warning, err := peercerts.Ensure(to, n2, late); err != nil || !strings.Contains(warning, "has expired") || !leaf(t, to).Equal(theirs) {
		t.Error(warning, err)
	}

	token, _, err := peercerts.NewToken(from, n2, time.Hour, late)
	if err != nil {
		t.Fatal(err)
	}

	place(t, to, token)

	if done, _, err := peercerts.Ensure(to, n2, late); err != nil || done == "" || !leaf(t, to).NotAfter.After(theirs.NotAfter) {
		t.Errorf("a token does not renew: %q %v", done, err)
	}
}

func TestEnsure_ChangesHosts(t *testing.T) {
	dir := first(t)
	moved := peercerts.Member{Name: "n1", Host: "10.0.0.99"}
	if done, _, err := peercerts.Ensure(dir, moved, now); err != nil || done == "" || leaf(t, dir).VerifyHostname(moved.Host) != nil {
		t.Errorf("its certificate is not for its new host: %q %v", done, err)
	}
}
