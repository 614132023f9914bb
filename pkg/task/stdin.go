package task

import (
	"path/filepath"
	"strings"
)

// Stdin is the standard input of a process. Exactly one field is set. Without it, the standard input is empty.
type Stdin struct {
	Text   string `json:"text,omitempty" doc:"The input itself, at most 16 KiB."`
	Secret string `json:"secret,omitempty" doc:"A value of a secret of the task's namespace, as NAME/KEY."`
	File   string `json:"file,omitempty" doc:"The absolute path of a file on the node. It is opened with the permissions of the user of the attempt."`
}

// MaxStdinText is the maximum size of Stdin.Text in bytes. Larger input comes from a secret or a file.
const MaxStdinText = 16 << 10

// validate checks the input.
func (s *Stdin) validate(field string) error {
	set := 0
	for _, v := range []string{s.Text, s.Secret, s.File} {
		if v != "" {
			set++
		}
	}

	switch {
	case set != 1:
		return Invalid(CodeRequired, field, "requires exactly one of text, secret and file")
	case len(s.Text) > MaxStdinText:
		return Invalid(CodeTooLong, field+".text", "is %d bytes long; at most %d are allowed: use secret or file", len(s.Text), MaxStdinText)
	case s.File != "" && (!filepath.IsAbs(s.File) || strings.ContainsRune(s.File, 0) || len(s.File) > maxPath):
		return Invalid(CodeBadValue, field+".file", "%s is not an absolute path", Quote(s.File))
	case s.Secret != "":
		if _, _, err := ParseSecretRef(s.Secret); err != nil {
			return Invalid(CodeBadValue, field+".secret", "%v", err)
		}
	}

	return nil
}

// maxPath is the maximum length of a path on Linux, without the byte that ends it.
const maxPath = 4095

// Source names the source of the input in messages: "secret db/password", "file /etc/app.sql".
func (s *Stdin) Source() string {
	switch {
	case s.Secret != "":
		return "secret " + s.Secret
	case s.File != "":
		return "file " + s.File
	}

	return "text"
}
