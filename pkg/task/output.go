package task

import (
	"fmt"
	"net/mail"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Output defines what is kept of the output of attempts. The zero value means the node's defaults.
type Output struct {
	Streams  string   `json:"streams,omitempty" doc:"merged: standard output and standard error share one pipe and keep the order in which they were written. apart: each has its own pipe, and lines are ordered by arrival." absent:"merged" enum:"merged,apart"`
	Limit    Size     `json:"limit,omitempty" doc:"How many bytes of the output of each attempt are kept, from the start, such as 10Mi. The node's spool_limit is the maximum." absent:"the node's" min:"1Ki" max:"1Ti"`
	Keep     Duration `json:"keep,omitzero" doc:"How long output is kept after its last byte. The node's spool_retention is the maximum." absent:"the node's" min:"1m" max:"87600h"`
	Mask     *bool    `json:"mask,omitempty" doc:"Replaces values of secrets in the output of processes by ***. To set it to false, you need the right to use the secrets of the task." absent:"true"`
	Compress *bool    `json:"compress,omitempty" doc:"Compresses the output when the attempt has ended, if that saves a disk block." absent:"true"`
	Mail     []string `json:"mail,omitempty" doc:"Addresses to which the node sends the output of each run, at most once, as MAILTO does for cron. Only for processes." absent:"none" maxItems:"10" uniqueItems:"true" example:"ann@example.com"`
	MailWhen string   `json:"mail_when,omitempty" doc:"output: the last attempt of a run printed something. failure: the run failed or timed out." absent:"output" enum:"output,failure"`
	MailFrom string   `json:"mail_from,omitempty" doc:"The sender of these mails, as MAILFROM does for cron." absent:"the user of the process" example:"cron@example.com"`
}

// IsZero reports whether all fields have their defaults.
func (o Output) IsZero() bool {
	return o.Streams == "" && o.Limit == 0 && o.Keep == 0 && o.Mask == nil && o.Compress == nil && len(o.Mail) == 0 && o.MailWhen == "" && o.MailFrom == ""
}

// The values of Output.Streams.
const (
	StreamsMerged = "merged"
	StreamsApart  = "apart"
)

// The values of Output.MailWhen.
const (
	MailWhenOutput  = "output"
	MailWhenFailure = "failure"
)

// The names of streams that are recorded separately.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// Apart reports whether the streams are recorded separately.
func (o Output) Apart() bool { return o.Streams == StreamsApart }

// Raw reports whether the output must not be compressed.
func (o Output) Raw() bool { return o.Compress != nil && !*o.Compress }

// MasksSecrets reports whether values of secrets are replaced in the output of processes.
func (o Output) MasksSecrets() bool { return o.Mask == nil || *o.Mask }

// WantsMail reports whether the end of a run's last attempt is mailed.
func (o Output) WantsMail(r *Run) bool {
	switch {
	case len(o.Mail) == 0:
		return false
	case o.MailWhen == MailWhenFailure:
		return r.State == Failed || r.State == TimedOut
	}

	return r.OutputBytes > 0
}

// validateMail checks the fields of mails with output.
func (s *Spec) validateMail() error {
	o := &s.Output
	if len(o.Mail) == 0 {
		for _, f := range []struct{ field, value string }{{"output.mail_when", o.MailWhen}, {"output.mail_from", o.MailFrom}} {
			if f.value != "" {
				return Invalid(CodeBadValue, f.field, "%s requires output.mail, which names the recipients", Quote(f.value))
			}
		}

		return nil
	}

	switch kind := s.Action.Kind(); {
	case kind == "": // the check of the action says so
	case kind != KindProcess:
		return Invalid(CodeBadValue, "output.mail", "applies only to processes, but the action is %s", kind)
	case s.Action.Process.NoNewPrivs:
		return Invalid(CodeBadValue, "output.mail", "is not possible with action.process.no_new_privs: sendmail runs as the user of the process, and needs privileges to queue a mail")
	}

	for i, address := range o.Mail {
		if err := CheckMailAddress(fmt.Sprintf("output.mail[%d]", i), address); err != nil {
			return err
		}
	}
	if o.MailFrom != "" {
		return CheckMailAddress("output.mail_from", o.MailFrom)
	}

	return nil
}

// maxMailAddress is the maximum length of an address, as in RFC 5321.
const maxMailAddress = 254

// CheckMailAddress checks the address of a mail: a plain one such as ann@example.com, without a display name, or the name
// of a user of the host. It can be an argument of sendmail, and a part of a header: no address begins with "-", which is an
// option, nor with "|" or "/", with which some programs deliver to a command or a file.
func CheckMailAddress(field, address string) error {
	refuse := func(rule string, args ...any) error {
		return Invalid(CodeBadValue, field, "%s is not the address of a mail: "+rule, append([]any{Quote(address)}, args...)...)
	}

	switch unsafe := strings.IndexFunc(address, func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune("\"(),:;<>[\\]", c) }); {
	case address == "":
		return Invalid(CodeRequired, field, "is required")
	case len(address) > maxMailAddress:
		return Invalid(CodeTooLong, field, "is %d bytes long; at most %d are allowed", len(address), maxMailAddress)
	case unsafe >= 0:
		r, _ := utf8.DecodeRuneInString(address[unsafe:])
		return refuse("%q is not allowed; write it as ann@example.com, without a name", r)
	case strings.ContainsRune("-|/", rune(address[0])):
		return refuse("it begins with %q", address[0])
	case !strings.Contains(address, "@"):
		return nil // a user of the host
	}

	if parsed, err := mail.ParseAddress(address); err != nil || parsed.Address != address {
		return refuse("write it as ann@example.com")
	}

	return nil
}

// Mark states when and through which stream the output from byte From up to the next mark arrived.
type Mark struct {
	From   int64
	At     time.Time // in milliseconds
	Stream string    // Stdout or Stderr; empty if the streams were not recorded separately
}

// Success defines when an attempt has succeeded whose process exited by itself, and not because of a signal.
// The zero value means exit code 0, with any output.
type Success struct {
	ExitCodes []int  `json:"exit_codes,omitempty" doc:"The exit codes that count as success." absent:"only 0" min:"0" max:"255" uniqueItems:"true"`
	Output    string `json:"output,omitempty" doc:"An RE2 pattern that at least one line of the output must match." absent:"none" maxLength:"1024" example:"^backup complete$"`
	NotOutput string `json:"not_output,omitempty" doc:"An RE2 pattern that no line of the output may match." absent:"none" maxLength:"1024" example:"(?i)error"`
}

// The maximum size of a pattern: as text in bytes, and as a compiled program in instructions. In the worst
// case, matching takes about 7 ns per instruction for each byte of output.
const (
	MaxPattern        = 1024
	maxPatternProgram = 1100
)

// IsZero reports whether the rule is the default.
func (s Success) IsZero() bool { return len(s.ExitCodes) == 0 && s.Output == "" && s.NotOutput == "" }

// Exit reports whether an exit code counts as success.
func (s Success) Exit(code int) bool {
	if len(s.ExitCodes) == 0 {
		return code == 0
	}
	return slices.Contains(s.ExitCodes, code)
}

// Patterns returns the compiled patterns; nil for an absent one. It does not check their size, because a
// pattern that was accepted by an earlier version with larger limits stays valid.
func (s Success) Patterns() (output, not *regexp.Regexp, err error) {
	if output, err = compilePattern("success.output", s.Output); err == nil {
		not, err = compilePattern("success.not_output", s.NotOutput)
	}
	return output, not, err
}

// validate checks the patterns.
func (s Success) validate() error {
	if err := checkPattern("success.output", s.Output); err != nil {
		return err
	}

	return checkPattern("success.not_output", s.NotOutput)
}

// checkPattern checks that a pattern is valid and not too expensive.
func checkPattern(field, pattern string) error {
	if len(pattern) > MaxPattern {
		return Invalid(CodeTooLong, field, "is %d bytes long; at most %d are allowed", len(pattern), MaxPattern)
	}

	tree, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return noPattern(field, pattern, err)
	}

	program, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return noPattern(field, pattern, err)
	}
	if n := len(program.Inst); n > maxPatternProgram { // a{1000}{9} is short as text, but large as a program
		return Invalid(CodeTooLong, field, "%s takes %d instructions; at most %d are allowed", Quote(pattern), n, maxPatternProgram)
	}

	return nil
}

// compilePattern compiles a pattern; nil if it is empty.
func compilePattern(field, pattern string) (*regexp.Regexp, error) {
	if pattern == "" {
		return nil, nil
	}

	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, noPattern(field, pattern, err)
	}

	return re, nil
}

// noPattern returns the error for an invalid pattern.
func noPattern(field, pattern string, err error) error {
	return Invalid(CodeBadValue, field, "%s is not a regular expression (RE2): %s", Quote(pattern), err)
}

// DefaultKillSignal is the meaning of an empty kill_signal.
const DefaultKillSignal = "SIGTERM"
