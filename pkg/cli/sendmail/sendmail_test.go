package sendmail

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"mime"
	"mime/quotedprintable"
	"net"
	netmail "net/mail"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// server is an SMTP server. Its fields say how it answers.
type server struct {
	plain          bool  // it does not offer TLS
	onRcpt, onData error // its answers
	hang           bool  // it never answers
	user, password string

	address string
	roots   *x509.CertPool
	mu      sync.Mutex
	mails   []received
}

type received struct {
	from string
	to   []string
	text string
	tls  bool
}

// start begins to serve, until the test ends.
func (s *server) start(t *testing.T) *server {
	t.Helper()

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = l.Addr().String()

	if s.hang {
		t.Cleanup(func() { l.Close() })
		return s
	}

	srv := smtp.NewServer(s)
	srv.Domain, srv.ErrorLog, srv.AllowInsecureAuth = "localhost", discard{}, true
	if !s.plain {
		srv.TLSConfig, s.roots = certificate(t)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { l.Close(); srv.Close(); <-done }) // Close alone misses a listener that Serve has not seen yet

	return s
}

type discard struct{}

func (discard) Printf(string, ...any) {}
func (discard) Println(...any)        {}

// certificate returns the configuration of a server with a certificate for 127.0.0.1, and who has signed it.
func certificate(t *testing.T) (*tls.Config, *x509.CertPool) {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)

	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, pool
}

func (s *server) NewSession(c *smtp.Conn) (smtp.Session, error) {
	_, encrypted := c.TLSConnectionState()
	return &session{s: s, v: received{tls: encrypted}}, nil
}

type session struct {
	s      *server
	v      received
	authed bool
}

func (c *session) AuthMechanisms() []string {
	if c.s.user == "" {
		return nil
	}
	return []string{sasl.Plain}
}

func (c *session) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, password string) error {
		if user != c.s.user || password != c.s.password {
			return smtp.ErrAuthFailed
		}
		c.authed = true
		return nil
	}), nil
}

func (c *session) Mail(from string, _ *smtp.MailOptions) error {
	if c.s.user != "" && !c.authed {
		return smtp.ErrAuthRequired
	}
	c.v.from = from
	return nil
}

func (c *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	c.v.to = append(c.v.to, to)
	return c.s.onRcpt
}

func (c *session) Data(r io.Reader) error {
	b, err := io.ReadAll(r)
	if err == nil {
		err = c.s.onData
	}
	if err != nil {
		return err
	}

	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.v.text = string(b)
	c.s.mails = append(c.s.mails, c.v)

	return nil
}

func (c *session) Reset()        { c.v = received{tls: c.v.tls} }
func (c *session) Logout() error { return nil }

var _ smtp.AuthSession = (*session)(nil)

// runOfAlert is the environment of a receiver's run.
var runOfAlert = map[string]string{
	"ALERT_TITLE": "FAILED shop/sync: exit 1", "ALERT_TEXT": "FAILED shop/sync: exit 1\n> ärger\n.\nlast",
	"CARILLON_NAMESPACE": "ops", "CARILLON_TASK": "mail", "CARILLON_RUN_ID": "20261124T020100.000Z-k3f9",
}

func send(s *server, env map[string]string, change ...func(*options)) error {
	o := options{to: []string{"ops@example.com"}, from: "carillon@example.com", server: s.address, roots: s.roots, in: strings.NewReader("from stdin\n"),
		env: func(name string) string { return env[name] }, maxTime: 30 * time.Second, sendmail: defaultSendmail}
	for _, f := range change {
		f(&o)
	}

	return o.run(context.Background())
}

// exitOf returns the exit code that an error means.
func exitOf(err error) int {
	var f *failure.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &f):
		return f.Exit
	}
	return -1
}

func TestSendMail_SendsAnAlert(t *testing.T) {
	s := (&server{}).start(t)
	for range 2 { // two attempts of a run
		if err := send(s, runOfAlert, func(o *options) { o.to = []string{"ops@example.com", "dev@example.com"} }); err != nil {
			t.Fatal(err)
		}
	}

	if len(s.mails) != 2 || !s.mails[0].tls || s.mails[0].from != "carillon@example.com" || !slices.Equal(s.mails[0].to, []string{"ops@example.com", "dev@example.com"}) {
		t.Fatalf("got %+v", s.mails)
	}

	var ids []string
	for _, v := range s.mails {
		m, err := netmail.ReadMessage(strings.NewReader(v.text))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, m.Header.Get("Message-ID"))
		if m.Header.Get("Subject") != runOfAlert["ALERT_TITLE"] || m.Header.Get("Auto-Submitted") != "auto-generated" || m.Header.Get("Date") == "" {
			t.Errorf("headers %v", m.Header)
		}
	}
	if ids[0] != ids[1] || len(ids[0]) < 20 {
		t.Errorf("the attempts of a run have the IDs %q", ids)
	}

	// Another run, another subject, other recipients: other mails.
	other := map[string]string{}
	for k, v := range runOfAlert {
		other[k] = v
	}
	other["CARILLON_RUN_ID"] = "20261124T020200.000Z-k3f9"
	for _, f := range []func() error{
		func() error { return send(s, other) },
		func() error { return send(s, runOfAlert, func(o *options) { o.subject = "another" }) },
		func() error { return send(s, runOfAlert, func(o *options) { o.to = []string{"x@example.com"} }) },
		func() error { return send(s, map[string]string{"ALERT_TITLE": "outside of a run", "ALERT_TEXT": "x"}) },
	} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
		m, _ := netmail.ReadMessage(strings.NewReader(s.mails[len(s.mails)-1].text))
		if id := m.Header.Get("Message-ID"); id == "" || slices.Contains(ids, id) {
			t.Errorf("Message-ID %q again", id)
		}
	}
}

func TestSendMail_TextAndSubject(t *testing.T) {
	s := (&server{}).start(t)
	long := strings.Repeat("ä", 200)
	if err := send(s, nil, func(o *options) { o.subject, o.in = long, strings.NewReader("a\n.\n"+strings.Repeat("x", 2000)+"\xff") }); err != nil {
		t.Fatal(err)
	}

	m, err := netmail.ReadMessage(strings.NewReader(s.mails[0].text))
	if err != nil {
		t.Fatal(err)
	}
	subject, err := (&mime.WordDecoder{}).DecodeHeader(m.Header.Get("Subject"))
	if err != nil || subject != strings.Repeat("ä", maxSubject-1)+"…" {
		t.Errorf("subject %q, %v", subject, err)
	}
	for line := range strings.Lines(s.mails[0].text) {
		if len(line) > 998 {
			t.Errorf("a line has %d bytes", len(line))
		}
	}
}

// The exit code says whether another attempt makes sense.
func TestSendMail_ExitCodes(t *testing.T) {
	answer := func(code int) error { return &smtp.SMTPError{Code: code, Message: "no\u009bt today"} }
	for _, tt := range []struct {
		name   string
		s      *server
		change func(*options)
		env    map[string]string
		want   int
		text   string
	}{
		{"accepted", &server{}, nil, nil, 0, ""},
		{"no TLS", &server{plain: true}, nil, nil, 1, "STARTTLS"},
		{"no TLS, accepted", &server{plain: true}, func(o *options) { o.insecure = true }, nil, 0, ""},
		{"an unknown certificate", &server{}, func(o *options) { o.roots = x509.NewCertPool() }, nil, 1, "certificate"},
		{"an unknown certificate, with --insecure", &server{}, func(o *options) { o.roots, o.insecure = x509.NewCertPool(), true }, nil, 1, "certificate"},
		{"recipient 4xx", &server{onRcpt: answer(451)}, nil, nil, 75, "451"},
		{"recipient 5xx", &server{onRcpt: answer(550)}, nil, nil, 1, "550"},
		{"text 4xx", &server{onData: answer(452)}, nil, nil, 75, "452"},
		{"text 5xx", &server{onData: answer(554)}, nil, nil, 1, "554"},
		{"hanging", &server{hang: true}, func(o *options) { o.maxTime = 200 * time.Millisecond }, nil, 75, "127.0.0.1"},
		{"nobody there", &server{}, func(o *options) { o.server = "127.0.0.1:1" }, nil, 75, "127.0.0.1:1"},
		{"login", &server{user: "ann", password: "hunter2"}, nil, map[string]string{"SMTP_USER": "ann", "SMTP_PASSWORD": "hunter2"}, 0, ""},
		{"wrong password", &server{user: "ann", password: "hunter2"}, nil, map[string]string{"SMTP_USER": "ann", "SMTP_PASSWORD": "hunter3"}, 1, "535"},
		{"login required", &server{user: "ann", password: "hunter2"}, nil, nil, 1, "502"},
		{"no login without TLS", &server{plain: true, user: "ann", password: "hunter2"}, func(o *options) { o.insecure = true }, map[string]string{"SMTP_USER": "ann", "SMTP_PASSWORD": "hunter2"}, 1, ""},
		{"half a login", &server{}, nil, map[string]string{"SMTP_USER": "ann"}, 1, "both a user and a password"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			env := map[string]string{"ALERT_TITLE": "title", "ALERT_TEXT": "text"}
			for k, v := range tt.env {
				env[k] = v
			}
			s, change := tt.s, tt.change
			if change == nil {
				change = func(*options) {}
			}
			err := send(s.start(t), env, change)
			if got := exitOf(err); got != tt.want || err != nil && (!strings.Contains(err.Error(), tt.text) || strings.Contains(err.Error(), "hunter") || strings.Contains(err.Error(), "\u009b")) {
				t.Errorf("exit %d: %v, want %d with %q", got, err, tt.want, tt.text)
			}
			if delivered := len(s.mails) > 0; delivered != (tt.want == 0) {
				t.Errorf("delivered: %t", delivered)
			}
		})
	}
}

func TestSendMail_ReadsTheLoginFromFiles(t *testing.T) {
	s := (&server{user: "ann", password: "hunter2"}).start(t)
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}

	env := map[string]string{"ALERT_TITLE": "x", "SMTP_PASSWORD": "of the variable"}
	if err := send(s, env, func(o *options) { o.userFile, o.passwordFile = file("u", "ann\n"), file("p", "hunter2\n") }); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{file("empty", "\n"), file("two", "a\nb\n"), file("large", strings.Repeat("x", maxSecretFile+1)), filepath.Join(dir, "none")} {
		if err := send(s, env, func(o *options) { o.userFile, o.passwordFile = file("u", "ann"), bad }); exitOf(err) != 1 {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// What could be an option, another recipient or another header is refused before anything is sent.
func TestSendMail_RefusesHostileValues(t *testing.T) {
	s := (&server{}).start(t)
	for name, change := range map[string]func(*options){
		"an option":              func(o *options) { o.to = []string{"-X/tmp/x"} },
		"a second recipient":     func(o *options) { o.to = []string{"ops@example.com", "a@example.com b@example.com"} },
		"a line break":           func(o *options) { o.to = []string{"ops@example.com\r\nBcc: all@example.com"} },
		"a display name":         func(o *options) { o.to = []string{"Ops <ops@example.com>"} },
		"no domain":              func(o *options) { o.to = []string{"root"} },
		"an option as sender":    func(o *options) { o.from = "-X/tmp/x@example.com" },
		"a subject with a break": func(o *options) { o.subject = "a\nBcc: all@example.com" },
		"a subject with CR":      func(o *options) { o.subject = "a\rb" },
		"too much text":          func(o *options) { o.subject, o.in = "a", strings.NewReader(strings.Repeat("x", maxText+1)) },
	} {
		for _, transport := range []string{s.address, ""} {
			err := send(s, runOfAlert, change, func(o *options) { o.server, o.sendmail = transport, "/bin/false" })
			if exitOf(err) != 1 || strings.Contains(err.Error(), "false") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if err := send(s, map[string]string{"ALERT_TITLE": "a\nBcc: all@example.com"}); exitOf(err) != 1 {
		t.Errorf("a title with a line break: %v", err)
	}
	if len(s.mails) > 0 {
		t.Errorf("sent %+v", s.mails)
	}
}

func TestSendMail_Sendmail(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "sendmail")
	write := func(text string) {
		if err := os.WriteFile(script, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	local := func(o *options) { o.server, o.sendmail, o.maxTime = "", script, 30*time.Second }

	write("printf '%s\\n' \"$@\" >" + dir + "/args\ncat >" + dir + "/mail\n")
	if err := send(&server{}, runOfAlert, local, func(o *options) { o.to = []string{"ops@example.com", "dev@example.com"} }); err != nil {
		t.Fatal(err)
	}
	args, _ := os.ReadFile(dir + "/args")
	text, _ := os.ReadFile(dir + "/mail")
	if string(args) != "-i\n-f\ncarillon@example.com\n--\nops@example.com\ndev@example.com\n" || bytes.Contains(text, []byte("\r")) {
		t.Errorf("arguments %q, mail\n%s", args, text)
	}
	m, err := netmail.ReadMessage(bytes.NewReader(text))
	if err != nil || m.Header.Get("Subject") != runOfAlert["ALERT_TITLE"] || m.Header.Get("Bcc") != "" {
		t.Errorf("%v: %v", err, m)
	}

	for text, want := range map[string]int{"echo try again later >&2; exit 75": 75, "echo no such user; exit 67": 1, "sleep 300": 75} {
		write(text)
		err := send(&server{}, runOfAlert, local, func(o *options) {
			if want == 75 && !strings.Contains(text, "exit") {
				o.maxTime = 300 * time.Millisecond
			}
		})
		if exitOf(err) != want {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := send(&server{}, runOfAlert, local, func(o *options) { o.sendmail = dir + "/none" }); exitOf(err) != 1 {
		t.Errorf("no sendmail: %v", err)
	}
}

// The example sends a message to its recipient, whatever the text is.
func TestSendMail_SendsTheExample(t *testing.T) {
	b, err := os.ReadFile("../../../examples/receivers/mail.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := manifest.Read("mail.yaml", b, "default")
	if err != nil || len(objects) != 1 || objects[0].Err != nil {
		t.Fatalf("%v: %+v", err, objects)
	}
	command := objects[0].Spec.Action.Process.Command
	if !slices.Equal(command[:2], []string{"carillon", "send-mail"}) {
		t.Fatalf("the command is %q", command)
	}

	message := alert.Message{Now: time.Date(2026, 11, 24, 2, 1, 0, 0, time.UTC), Cluster: "c1", Receiver: "default/mail", Output: true, Opened: []alert.Item{{
		Alert: task.Alert{Namespace: "default", Task: "sync", Kind: task.AlertFailures, Labels: map[string]string{"owner": "x\r\nBcc: all@example.com"}},
		Run:   &task.Run{State: task.Failed, OutputSummary: task.OutputSummary{OutputTail: "$(touch /tmp/x)\n.\n\r\n.\r\nBcc: all@example.com"}},
	}}}
	env := message.Env(objects[0].Spec.Accept.Env)

	dir := t.TempDir()
	script := "#!/bin/sh\nprintf '%s\\n' \"$@\" >" + dir + "/args\ncat >" + dir + "/mail\n"
	if err := os.WriteFile(dir+"/sendmail", []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}

	f := factory.New(factory.IO{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard, Env: func(name string) string { return env[name] }})
	cmd := Command(f)
	cmd.SetArgs(append(command[2:], "--sendmail", dir+"/sendmail", "--from", "carillon@example.com"))
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}

	args, _ := os.ReadFile(dir + "/args")
	text, _ := os.ReadFile(dir + "/mail")
	m, err := netmail.ReadMessage(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(quotedprintable.NewReader(m.Body))
	if string(args) != "-i\n-f\ncarillon@example.com\n--\nops@example.com\n" || m.Header.Get("Bcc") != "" || err != nil || string(body) != env[alert.VarText] {
		t.Errorf("arguments %q, headers %v, %v, body\n%s\nwant\n%s", args, m.Header, err, body, env[alert.VarText])
	}
}

func TestServerAddress(t *testing.T) {
	for in, want := range map[string]string{"smtp.example.com": "smtp.example.com 587", "smtp.example.com:25": "smtp.example.com 25", "[::1]:465": "::1 465", "::1": "::1 587"} {
		host, port, err := serverAddress(in)
		if got := host + " " + big.NewInt(int64(port)).String(); err != nil || got != want {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
	for _, bad := range []string{"", ":25", "a:0", "a:x", "a:70000", "smtp://a", "a b", "ann@a:25"} {
		if _, _, err := serverAddress(bad); exitOf(err) != failure.ExitUsage {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
