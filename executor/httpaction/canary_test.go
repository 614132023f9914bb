package httpaction

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/carillonhq/carillon/executor/mask"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
)

// serveText starts a server that answers each connection with what answer returns for the raw request.
func serveText(t *testing.T, answer func(request string) string) string {
	t.Helper()

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}

			wg.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(5 * time.Second))

				// All of the requests of this test fit into one segment and have no large body.
				b := make([]byte, 64<<10)
				n, err := c.Read(b)
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, answer(string(b[:n])))
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})

	return "http://" + ln.Addr().String()
}

// lockedBuffer is a buffer for loggers.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.Buffer.Write(p)
}

func (b *lockedBuffer) Sync() error { return nil }

// TestRunAttempt_ShowsNoSecret runs requests that contain secrets in every place against targets that send them back in
// every place, and searches everything that an attempt leaves: its result, logs, and the spool.
func TestRunAttempt_ShowsNoSecret(t *testing.T) {
	response := func(status, headers, body string) string {
		return fmt.Sprintf("HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: %d\r\n%s\r\n%s", status, len(body), headers, body)
	}
	line := func(request string) string { l, _, _ := strings.Cut(request, "\r\n"); return l }
	targets := map[string]func(string) string{
		"echo":    func(q string) string { return response("200 OK", "", q) },
		"failure": func(q string) string { return response("500 "+line(q), "", q) },
		"JSON": func(q string) string {
			b, _ := json.Marshal(map[string]string{"id": q})
			return response("200 OK", "", string(b))
		},
		"parts": func(q string) string {
			_, body, _ := strings.Cut(q, "\r\n\r\n")
			u, _ := url.ParseRequestURI(strings.Fields(q)[1])
			form, _ := url.ParseQuery(body)
			b, _ := json.Marshal(map[string]any{"query": u.Query(), "path": strings.Split(u.Path, "/"), "form": form})
			return response("500 No", "", string(b))
		},
		"HTML":           func(q string) string { return response("500 No", "", html.EscapeString(q)) },
		"Go":             func(q string) string { return response("500 No", "", strconv.QuoteToASCII(q)) },
		"not HTTP":       func(q string) string { return q },
		"bad status":     func(q string) string { return "HTTP/1.1 " + q },
		"bad header":     func(q string) string { return "HTTP/1.1 200 OK\r\n" + line(q) + "\r\n\r\n" },
		"bad length":     func(q string) string { return "HTTP/1.1 200 OK\r\nContent-Length: " + line(q) + "\r\n\r\n" },
		"bad encoding":   func(q string) string { return "HTTP/1.1 200 OK\r\nTransfer-Encoding: " + line(q) + "\r\n\r\n" },
		"not compressed": func(q string) string { return response("200 OK", "Content-Encoding: gzip\r\n", q) },
		"redirect": func(q string) string {
			return response("302 Found", "Location: http://127.0.0.1:1/?"+strings.Fields(q)[1]+"\r\n", q)
		},
		"bad redirect":    func(q string) string { return response("302 Found", "Location: ftp://"+strings.Fields(q)[1]+"\r\n", q) },
		"more than asked": func(q string) string { return "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx" + q },
		"cut off":         func(q string) string { return "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + q },
		"informational": func(q string) string {
			return "HTTP/1.1 103 " + line(q) + "\r\nX: " + line(q) + "\r\n\r\n" + response("200 OK", "", q)
		},
		"unasked switching": func(q string) string {
			return "HTTP/1.1 101 " + line(q) + "\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n" + q
		},
	}

	secrets := map[string]map[string]string{"default/api": {}}
	for name, v := range testSecrets["default/api"] {
		secrets["default/api"][name] = v
	}

	actions := map[string]task.HTTP{
		"long":      {URL: "/?k=${secret:api/long}"},
		"cut":       {URL: "/?k=${secret:api/key}&l=${secret:api/long}", Limit: task.HTTPLimit{Body: 20}, Output: task.HTTPOutputKeep},
		"header":    {Headers: map[string]string{"X-Key": "${secret:api/key}"}, URL: "/"},
		"query":     {URL: "/?k=${secret:api/key}"},
		"JSON":      {URL: "/", JSON: json.RawMessage(`{"k":"${secret:api/key}","l":"${secret:api/quoted}"}`)},
		"form":      {URL: "/", Form: map[string]string{"k": "${secret:api/key}"}},
		"body":      {URL: "/", Body: "secret:api/body"},
		"form body": {URL: "/", Body: "secret:api/form"},
		"bearer":    {URL: "/", Auth: &task.HTTPAuth{Bearer: "api/key"}},
		"basic":     {URL: "/", Auth: &task.HTTPAuth{Basic: "api/login"}},
		"url":       {URL: "secret:api/url"},
	}
	secrets["default/api"]["long"] = strings.Repeat("hush+", 300)
	secrets["default/api"]["form"] = "user=joe&password=form%2Fhush"
	secrets["default/api"]["quoted"] = "hush\"\\<quoted>\n"

	var logs lockedBuffer
	logger := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), &logs, zap.DebugLevel))
	before := log.Writer()
	log.SetOutput(FilterStandardLog(&logs))
	defer log.SetOutput(before)

	dir := t.TempDir()
	store := spool.New(spool.Config{Dir: dir, Logger: logger})
	r := newRunner(t, func(c *Config) { c.Secrets, c.Spool, c.Logger, c.Dir = secretsOf(secrets), store, logger, dir })

	var shown strings.Builder
	n := 0
	for targetName, answer := range targets {
		target := serveText(t, answer)
		secrets["default/api"]["url"] = target + "/services/T0-segment-hush/B0-segment-hush?token=hush%2Furl+token"

		for name, h := range actions {
			if name != "url" {
				h.URL = target + h.URL
			}

			for _, h := range []task.HTTP{
				h, with(h, func(h *task.HTTP) { h.Output = task.HTTPOutputKeep }), with(h, func(h *task.HTTP) { h.Redirects = 3 }),
				with(h, func(h *task.HTTP) { h.Results = map[string]string{"id": "/id"} }), with(h, func(h *task.HTTP) { h.Expect.Body = "^$" }), with(h, func(h *task.HTTP) { h.Method = http.MethodHead }),
			} {
				a, _ := newAttempt(h)
				a.Attempt, a.Timeout = int(a.Token), task.Duration(2*time.Second)
				res := r.RunAttempt(a, process.NewOrders())
				status, _ := json.Marshal(res.Status)
				fmt.Fprintf(&shown, "%s, %s: %+v\n%s\n%s\n", targetName, name, res, res.Tail, status)
				n++
			}
		}
	}

	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			b, _ := os.ReadFile(path)
			fmt.Fprintf(&shown, "file %s: %s\n", path, b)
		}
		return nil
	})
	shown.WriteString(logs.String())

	for _, secret := range []string{"hush", base64.StdEncoding.EncodeToString([]byte(secrets["default/api"]["login"]))} {
		for l := range strings.Lines(shown.String()) {
			if strings.Contains(l, secret) {
				t.Errorf("a secret is shown: %.300s", l)
			}
		}
	}
	if !strings.Contains(shown.String(), mask.Text) || n < 500 {
		t.Errorf("%d attempts, and nothing was masked: the test does not test", n)
	}
}

// with returns a changed copy of an action.
func with(h task.HTTP, change func(*task.HTTP)) task.HTTP {
	change(&h)
	return h
}
