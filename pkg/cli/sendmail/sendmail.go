// Package sendmail implements "carillon send-mail", which sends one mail: an alert as a receiver gets it, or any text.
//
// It guarantees that recipients come only from its flags, and that attempts of a run send the same mail: their Message-ID is the
// same, so that servers that compare it keep one. Its exit code says whether another attempt makes sense. It never prints or
// logs a password, and takes none from its arguments.
package sendmail

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/wneessen/go-mail"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// exitTryAgain is EX_TEMPFAIL of sysexits.h: another attempt may succeed. Everything else that fails exits with 1.
	exitTryAgain = 75

	defaultSendmail = "/usr/sbin/sendmail"
	maxTime         = 50 * time.Second // less than the timeout of a receiver, so that the reason is known
	maxSubject      = 78
	maxText         = 1 << 20
	maxSecretFile   = 4 << 10
	maxReason       = 500
	submissionPort  = 587
	implicitTLSPort = 465
)

// The variables that the command reads.
const (
	varTitle    = "ALERT_TITLE"
	varText     = "ALERT_TEXT"
	varUser     = "SMTP_USER"
	varPassword = "SMTP_PASSWORD"
	varRun      = "CARILLON_RUN_ID"
	varTask     = "CARILLON_TASK"
	varSpace    = "CARILLON_NAMESPACE"
)

// options are the flags, and what tests replace.
type options struct {
	to                     []string
	from, subject          string
	server, sendmail       string
	userFile, passwordFile string
	insecure               bool

	env     func(string) string
	in      io.Reader
	roots   *x509.CertPool // nil: those of the system
	maxTime time.Duration
}

// Command returns "carillon send-mail".
func Command(f *factory.Factory) *cobra.Command {
	o := options{maxTime: maxTime}
	cmd := &cobra.Command{
		Use:   "send-mail --to ADDRESS",
		Short: "Send a mail, from a receiver of alerts or another task",
		Long: "Send a mail through an SMTP server, or through the sendmail of the host.\n\n" +
			"The subject and the text are those of an alert, from the variables " + varTitle + " and " + varText + ". With --subject, the text\n" +
			"is the standard input. Only the flags name recipients, and an address must be a plain one, such as ann@example.com.\n\n" +
			"An SMTP server must offer STARTTLS, unless the port is 465, which is TLS from the start. The user and the password are in the\n" +
			"variables " + varUser + " and " + varPassword + ", for example from a secret, or in files. They are never sent without TLS.\n\n" +
			"All attempts of a run send the mail with the same Message-ID. The exit code is 0 if the mail was accepted, 75 if another\n" +
			"attempt makes sense (an answer 4xx, no connection, 50 s without success), and 1 if the mail was refused.",
		Example: `  carillon send-mail --to ops@example.com                          # in a receiver of alerts, through sendmail
  carillon send-mail --to ops@example.com --from cron@example.com --server smtp.example.com
  report | carillon send-mail --to ann@example.com,bob@example.com --subject "Report"`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("server") && cmd.Flags().Changed("sendmail") {
				return failure.Usage("--server and --sendmail cannot be used together")
			}
			if err := factory.RefuseEmpty(cmd, "to", "from", "subject", "server", "sendmail", "user-file", "password-file"); err != nil {
				return err
			}

			o.env, o.in = f.Env, f.In

			return o.run(cmd.Context())
		},
	}

	flags := cmd.Flags()
	flags.StringSliceVar(&o.to, "to", nil, "comma-separated `ADDRESSES` of the recipients")
	flags.StringVar(&o.from, "from", "", "`ADDRESS` of the sender (default: the user at this host)")
	flags.StringVar(&o.subject, "subject", "", "`SUBJECT`; the text is then the standard input (default: "+varTitle+" with "+varText+")")
	flags.StringVar(&o.server, "server", "", "`HOST[:PORT]` of the SMTP server, with port 587 by default (default: use sendmail)")
	flags.StringVar(&o.sendmail, "sendmail", defaultSendmail, "`PATH` of the program that sends the mail without --server")
	flags.BoolVar(&o.insecure, "insecure", false, "send without TLS if the server does not offer it, for servers on this host")
	flags.StringVar(&o.userFile, "user-file", "", "`FILE` with the user for the SMTP server")
	flags.StringVar(&o.passwordFile, "password-file", "", "`FILE` with the password for the SMTP server")
	for _, name := range []string{"to", "from", "subject", "server"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	factory.LimitFormats(cmd, output.FormatTable)

	return cmd
}

// run sends the mail.
func (o *options) run(ctx context.Context) error {
	m, err := o.compose()
	if err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, o.maxTime)
	defer cancel()

	if o.server == "" {
		return o.runSendmail(ctx, m)
	}

	return o.sendSMTP(ctx, m)
}

// refuse returns the error for a mail that cannot be sent, whatever happens later.
func refuse(format string, args ...any) error {
	return &failure.Error{Exit: failure.ExitFailure, Problem: failure.Problem{Code: task.CodeBadValue, Message: fmt.Sprintf(format, args...)}}
}

// compose returns the mail.
func (o *options) compose() (*mail.Msg, error) {
	if len(o.to) == 0 {
		return nil, failure.Usage("--to is required")
	}
	if o.from == "" {
		o.from = ownAddress()
	}

	for _, a := range append([]string{o.from}, o.to...) {
		err := task.CheckMailAddress("address", a)
		if err == nil && !strings.Contains(a, "@") {
			err = fmt.Errorf("%s has no @: write it as ann@example.com", task.Quote(a))
		}
		if err != nil {
			return nil, refuse("%v", err)
		}
	}

	subject, text := o.env(varTitle), o.env(varText)
	if o.subject != "" {
		b, err := io.ReadAll(io.LimitReader(o.in, maxText+1))
		if err != nil {
			return nil, refuse("standard input: %v", err)
		}
		if len(b) > maxText {
			return nil, refuse("the text has more than %d bytes", maxText)
		}
		subject, text = o.subject, string(b)
	}

	switch {
	case subject == "":
		return nil, failure.Usage("no subject: use --subject, or let accept.env of the receiver name %s and %s", varTitle, varText)
	case strings.ContainsFunc(subject, unicode.IsControl):
		return nil, refuse("the subject %s contains a line break or another control character", task.Quote(subject))
	}

	m := mail.NewMsg(mail.WithNoDefaultUserAgent())
	if err := errors.Join(m.From(o.from), m.To(o.to...)); err != nil {
		return nil, refuse("%v", err)
	}

	subject = cutSubject(strings.ToValidUTF8(subject, "\uFFFD"))
	m.Subject(subject)
	m.SetGenHeader("Auto-Submitted", "auto-generated")
	if run := o.env(varRun); run != "" {
		m.SetMessageIDWithValue(messageID(o.env(varSpace), o.env(varTask), run, strings.Join(o.to, ","), subject))
	}
	m.SetBodyString(mail.TypeTextPlain, strings.ToValidUTF8(text, "\uFFFD"))

	return m, nil
}

// cutSubject limits the length of a subject. The text of an alert repeats it as a whole.
func cutSubject(text string) string {
	if utf8.RuneCountInString(text) <= maxSubject {
		return text
	}
	return string([]rune(text)[:maxSubject-1]) + "…"
}

// messageID returns the ID of a mail of a run. Another mail of the same run has other recipients or another subject. It does not
// depend on the node, because the next attempt may run on another one.
func messageID(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return fmt.Sprintf("%x@carillon", sum[:16])
}

// ownAddress returns the address of the current user at this host.
func ownAddress() string {
	name := strconv.Itoa(os.Getuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}

	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}

	return name + "@" + host
}

// runSendmail passes the mail to the sendmail of the host. Without -t, sendmail takes recipients only from its arguments.
func (o *options) runSendmail(ctx context.Context, m *mail.Msg) error {
	var text bytes.Buffer
	if _, err := m.WriteTo(&text); err != nil {
		return refuse("%v", err)
	}

	// sendmail expects the line ends of the host.
	cmd := exec.CommandContext(ctx, o.sendmail, append([]string{"-i", "-f", o.from, "--"}, o.to...)...)
	cmd.Stdin = bytes.NewReader(bytes.ReplaceAll(text.Bytes(), []byte("\r\n"), []byte("\n")))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second

	said, err := cmd.CombinedOutput()
	reason := strings.TrimSpace(strings.ToValidUTF8(string(said[:min(len(said), maxReason)]), "\uFFFD"))
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return tryAgain("%s: no end within %s", o.sendmail, o.maxTime)
	case cmd.ProcessState.ExitCode() == exitTryAgain:
		return tryAgain("%s: %v: %s", o.sendmail, err, reason)
	}

	return refuse("%s", strings.TrimSuffix(fmt.Sprintf("%s: %v: %s", filepath.Base(o.sendmail), err, reason), ": "))
}

// tryAgain returns the error for a mail that a later attempt may send.
func tryAgain(format string, args ...any) error {
	return &failure.Error{Exit: exitTryAgain, Problem: failure.Problem{Code: "unavailable", Message: fmt.Sprintf(format, args...)}}
}

// sendSMTP sends the mail to the server.
func (o *options) sendSMTP(ctx context.Context, m *mail.Msg) error {
	host, port, err := serverAddress(o.server)
	if err != nil {
		return err
	}

	name, password, err := o.credentials()
	if err != nil {
		return err
	}

	settings := []mail.Option{
		mail.WithPort(port), mail.WithTimeout(o.maxTime), mail.WithTLSConfig(&tls.Config{ServerName: host, RootCAs: o.roots, MinVersion: tls.VersionTLS12}),
		mail.WithTLSPolicy(mail.TLSMandatory), mail.WithoutNoop(), mail.WithoutRset(),
	}
	switch {
	case port == implicitTLSPort:
		settings = append(settings, mail.WithSSL())
	case o.insecure:
		settings = append(settings, mail.WithTLSPolicy(mail.TLSOpportunistic))
	}
	if name != "" {
		settings = append(settings, mail.WithSMTPAuth(mail.SMTPAuthAutoDiscover), mail.WithUsername(name), mail.WithPassword(password))
	}

	c, err := mail.NewClient(host, settings...)
	if err != nil {
		return refuse("%v", err)
	}

	// go-mail obeys ctx only until it is connected. The program ends soon, and with it what go-mail still waits for.
	ended := make(chan error, 1)
	go func() {
		err := c.DialAndSendWithContext(ctx, m)
		if m.IsDelivered() {
			err = nil // the server has accepted the mail, even if it did not say goodbye
		}
		ended <- err
	}()

	select {
	case err = <-ended:
	case <-ctx.Done():
		return tryAgain("%s: no answer within %s", o.server, o.maxTime)
	}

	switch {
	case err == nil:
		return nil
	case isFinal(err):
		return refuse("%s: %s", o.server, cutReason(err))
	}

	return tryAgain("%s: %s", o.server, cutReason(err))
}

// cutReason returns the text of an error, which contains answers of the server.
func cutReason(err error) string {
	text := strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(err.Error(), "\uFFFD"))

	return strings.ToValidUTF8(text[:min(len(text), maxReason)], "")
}

// isFinal reports whether another attempt would fail as well: the server has answered 5xx, does not offer what is required, or has a
// certificate that is not valid.
func isFinal(err error) bool {
	var sent *mail.SendError
	if errors.As(err, &sent) && sent.ErrorCode() != 0 {
		return sent.ErrorCode() >= 500
	}

	var answer *textproto.Error
	if errors.As(err, &answer) {
		return answer.Code >= 500
	}

	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) {
		return true
	}

	text := strings.ToUpper(err.Error())

	return strings.Contains(text, "STARTTLS") || strings.Contains(text, "SMTP AUTH") // go-mail has no types for these
}

// serverAddress splits HOST[:PORT].
func serverAddress(server string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(server)
	if err != nil {
		host, text = strings.Trim(server, "[]"), strconv.Itoa(submissionPort)
	}

	port, err = strconv.Atoi(text)
	if host == "" || err != nil || port < 1 || port > 65535 || strings.ContainsAny(host, " /@") {
		return "", 0, failure.Usage("--server: %s is not HOST:PORT", task.Quote(server))
	}

	return host, port, nil
}

// credentials returns the user and the password for the server: from files, or from variables.
func (o *options) credentials() (name, password string, err error) {
	name, password = o.env(varUser), o.env(varPassword)
	for file, v := range map[string]*string{o.userFile: &name, o.passwordFile: &password} {
		if file == "" {
			continue
		}
		if *v, err = readSecret(file); err != nil {
			return "", "", err
		}
	}

	if (name == "") != (password == "") {
		return "", "", refuse("the server needs both a user and a password, or neither: set %s and %s, or --user-file and --password-file", varUser, varPassword)
	}

	return name, password, nil
}

// readSecret reads a file with one line.
func readSecret(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", refuse("%s: %s", file, failure.FileReason(err))
	}
	defer f.Close()

	b, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if err != nil {
		return "", refuse("%s: %s", file, failure.FileReason(err))
	}

	line := strings.TrimRight(string(b), "\r\n")
	if line == "" || len(b) > maxSecretFile || strings.ContainsAny(line, "\r\n\x00") {
		return "", refuse("%s: has to contain one line of at most %d bytes", file, maxSecretFile)
	}

	return line, nil
}
