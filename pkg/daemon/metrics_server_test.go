package daemon_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/certs"
)

// read returns the status and the body of an answer.
func read(t *testing.T, h *http.Client, url string) (int, string) {
	t.Helper()
	res, err := h.Get(url)
	if err != nil {
		t.Fatal(err)
	}

	defer res.Body.Close()

	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}

	return res.StatusCode, string(b)
}

// At metrics_listen, a scraper needs no token and gets the metrics, also of a node without the role api, and nothing
// else. The API's own address wants a token.
func TestMetrics_HaveAListenerOfTheirOwn(t *testing.T) {
	t.Parallel() // mostly waits
	c := newCluster(t, "--shards", "8")
	c.start("n1")
	worker := c.start("n2", "--role", "executor")

	for _, p := range c.nodes {
		if status, body := read(t, http.DefaultClient, p.metricsURL()); status != http.StatusOK || !strings.Contains(body, `carillon_slots{kind="process"} `) || !strings.Contains(body, `carillon_api_connections{listener="metrics"}`) {
			t.Errorf("%s: %d %.200s", p.name, status, body)
		}

		base := strings.TrimSuffix(p.metricsURL(), "/metrics")
		for path, want := range map[string]int{"/healthz": 200, "/readyz": 404, "/v1/tasks": 404, "/openapi.json": 404, "/": 404} {
			if status, body := read(t, http.DefaultClient, base+path); status != want {
				t.Errorf("%s%s: %d, want %d: %.200s", p.name, path, status, want, body)
			}
		}

		want := http.StatusUnauthorized
		if p == worker {
			want = http.StatusNotFound // it serves no callers
		}
		if status, body := read(t, p.caller(), p.url()+"/metrics"); status != want {
			t.Errorf("%s without a token: %d, want %d: %.200s", p.name, status, want, body)
		}
	}
}

// A taken port of the metrics is tried again, and the node works meanwhile.
func TestMetrics_ATakenPortDoesNotHoldUpTheNode(t *testing.T) {
	t.Parallel() // mostly waits
	c := newCluster(t, "--shards", "8")
	p := c.node("n1")
	p.scraped = freePort(t)
	thief := &http.Server{Addr: fmt.Sprintf("127.0.0.1:%d", p.scraped)}
	go func() { _ = thief.ListenAndServe() }()
	t.Cleanup(func() { thief.Close() })
	eventually(t, func() error {
		res, err := http.Get(p.metricsURL())
		if err == nil {
			res.Body.Close()
		}
		return err
	})

	c.start("n1")
	if status, _ := read(t, http.DefaultClient, p.metricsURL()); status != http.StatusNotFound {
		t.Errorf("the node has the port: %d", status)
	}

	thief.Close()
	eventually(t, func() error {
		res, err := http.Get(p.metricsURL())
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("metrics: %s", res.Status)
		}
		return nil
	})
}

// On loopback the metrics have no TLS, so that a scraper of the host needs no CA. Beyond it they have the node's
// certificate, and its rule for client certificates.
func TestMetrics_HaveTLSBeyondLoopback(t *testing.T) {
	t.Parallel() // mostly waits
	c := newCluster(t, "--shards", "8")
	pki := newPKI(t)
	caller, err := certs.Open(pki.client("caller"))
	if err != nil {
		t.Fatal(err)
	}
	c.caller = caller

	for i, listen := range []string{"127.0.0.1", "0.0.0.0"} {
		name, port := fmt.Sprint("n", i), freePort(t)
		f := pki.node(name)
		p := c.start(name, "--tls-cert", f.Cert, "--tls-key", f.Key, "--tls-ca", f.CA, "--tls-client-auth", "require", "--metrics-listen", fmt.Sprintf("%s:%d", listen, port))

		plain, secure := fmt.Sprintf("http://127.0.0.1:%d/metrics", port), fmt.Sprintf("https://127.0.0.1:%d/metrics", port)
		if i == 0 {
			if status, _ := read(t, http.DefaultClient, plain); status != http.StatusOK {
				t.Errorf("on loopback: %d", status)
			}
			continue
		}

		if status, _ := read(t, p.caller(), secure); status != http.StatusOK {
			t.Errorf("with a certificate: %d", status)
		}
		if res, err := http.Get(plain); err == nil && res.StatusCode == http.StatusOK {
			t.Error("beyond loopback, the metrics are served without TLS")
		}

		anybody := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		if res, err := anybody.Get(secure); err == nil {
			t.Errorf("without a client certificate: %s", res.Status)
		}
	}
}
