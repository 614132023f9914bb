package settings

import (
	"fmt"
	"os"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/failure"
)

// UserTokenFile returns the default path of the user's token, or "" if there is no home directory.
func (r *Resolver) UserTokenFile() string { return r.userFile("token") }

// maxToken is the maximum length of a token in bytes.
const maxToken = 4096

// readToken reads a token from a file. warning is a message for the user, or "".
func readToken(file string) (token, warning string, err error) {
	failed := func(what string) error {
		return &failure.Error{Exit: failure.ExitAuth, Problem: failure.Problem{Code: "token_file", Field: "token-file", Message: file + ": " + what}}
	}

	b, err := os.ReadFile(file)
	if err != nil {
		return "", "", failed(failure.FileReason(err))
	}

	if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
		warning = fmt.Sprintf("warning: other users can read %s; run chmod 600 on it", file)
	}

	token = strings.TrimSpace(string(b))
	if !isToken(token) {
		return "", warning, failed("does not contain a token: a token is one word of printable ASCII")
	}

	return token, warning, nil
}

// isToken reports whether a text can be a token.
func isToken(t string) bool {
	return t != "" && len(t) <= maxToken && !strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r > '~' })
}

// Credential is the token of calls, with the users who can read it anyway.
type Credential struct {
	Token   string // "" means none
	Owners  []int  // users who already have the token: the owner of its file
	Warning string // a problem with its file
}

// ReadCredential returns the token of calls.
func (r *Resolver) ReadCredential(s *Settings) (c Credential, err error) {
	chosen, file := r.TokenSetting(s)
	if file.Value == "" {
		return Credential{Token: chosen.Value}, nil
	}

	if uid, ok := ownerOf(file.Value); ok {
		c.Owners = append(c.Owners, uid)
	}

	c.Token, c.Warning, err = readToken(file.Value)

	return c, err
}
