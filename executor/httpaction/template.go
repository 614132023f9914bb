package httpaction

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/go-faster/jx"

	"github.com/carillonhq/carillon/executor/mask"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/task"
)

// values returns the values of references in the templates of one attempt.
type values struct {
	attempt *process.Attempt
	node    string
	secrets *secretSource
}

// valueOf returns the value of a reference. An error is a *failure, or the cause of ctx's end.
func (v *values) valueOf(ctx context.Context, ref string) (string, error) {
	if value, ok := process.ValueOf(v.attempt, v.node, ref); ok {
		return value, nil
	}

	if secret, is := strings.CutPrefix(ref, task.SecretRefPrefix); is {
		return v.secrets.value(ctx, secret)
	}

	quoted := task.Quote("${" + ref + "}")

	if name, is := strings.CutPrefix(ref, task.EnvRefPrefix); is {
		if value, ok := v.attempt.Env[name]; ok {
			return value, nil
		}
		return "", &failure{kind: kindURL, message: fmt.Sprintf("the run has no value for %s; only a manual run can give one", quoted)}
	}

	switch {
	case task.IsStepRef(ref):
		return "", &failure{kind: kindValues, message: fmt.Sprintf("the step has no value for %s", quoted)}
	case ref == "part.index" || ref == "part.count":
		return "", &failure{kind: kindURL, message: fmt.Sprintf("%s has a value only in the parts of a fan-out", quoted)}
	case v.attempt.Step != "":
		return "", &failure{kind: kindValues, message: fmt.Sprintf("the run has no value for %s", quoted)}
	case ref == "run.period" || strings.HasPrefix(ref, task.CauseRefPrefix):
		return "", &failure{kind: kindURL, message: fmt.Sprintf("the run has no value for %s", quoted)}
	}

	return "", &failure{kind: kindURL, message: fmt.Sprintf("%s is not a known value", quoted)}
}

// expand returns the text of a template. escape escapes each value for its place; nil leaves it as it is.
func (v *values) expand(ctx context.Context, text string, escape func(string) (string, error)) (string, error) {
	if !strings.Contains(text, "${") {
		return text, nil
	}

	t, err := task.ParseTemplate(text)
	if err != nil {
		return "", &failure{kind: kindURL, message: err.Error()}
	}

	return t.Expand(func(ref string) (string, error) {
		value, err := v.valueOf(ctx, ref)
		if err == nil && escape != nil {
			if value, err = escape(value); err != nil {
				err = &failure{kind: kindURL, message: task.Quote("${"+ref+"}") + " " + err.Error()}
			}
		}
		return value, err
	})
}

// expandedSpace is how much longer an expanded template usually is than the template.
const expandedSpace = 32

// expandURL returns the URL of a template. Values are allowed in path segments and in values of the query.
func (v *values) expandURL(ctx context.Context, text string) (string, error) {
	if !strings.Contains(text, "${") {
		return text, nil
	}

	t, err := task.ParseTemplate(text)
	if err != nil {
		return "", &failure{kind: kindURL, message: err.Error()}
	}

	var b strings.Builder
	b.Grow(len(text) + expandedSpace)

	for _, p := range t {
		if p.Ref == "" {
			b.WriteString(p.Text)
			continue
		}

		value, err := v.valueOf(ctx, p.Ref)
		if err == nil {
			if value, err = escapeInURL(b.String(), value); err != nil {
				err = &failure{kind: kindURL, message: task.Quote("${"+p.Ref+"}") + " " + err.Error()}
			}
		}
		if err != nil {
			return "", err
		}

		b.WriteString(value)
	}

	return b.String(), nil
}

// escapeInURL escapes a value for its place in a URL, which follows before. An error does not contain the value.
func escapeInURL(before, value string) (string, error) {
	_, rest, ok := strings.Cut(before, "://")
	path := strings.IndexByte(rest, '/')
	query := strings.IndexByte(rest, '?')

	switch {
	case !ok || path < 0 && query < 0:
		return "", fmt.Errorf("is in the scheme, host or port of the URL")
	case query < 0:
		return escapeSegment(value)
	}

	pair := rest[strings.LastIndexAny(rest, "?&")+1:]
	if !strings.Contains(pair, "=") {
		return "", fmt.Errorf("is in a name of the URL's query")
	}

	return url.QueryEscape(value), nil
}

// escapeSegment escapes a value for a segment of a path. It refuses values that could change the other segments, at the
// target or at a proxy on the way.
func escapeSegment(value string) (string, error) {
	switch {
	case value == "":
		return "", fmt.Errorf("is empty, and a segment of the URL's path cannot be")
	case value == "." || value == "..":
		return "", fmt.Errorf("is %q, which a segment of the URL's path cannot be", value)
	case strings.ContainsAny(value, `/\%`) || strings.ContainsFunc(value, unicode.IsControl):
		return "", fmt.Errorf(`contains /, \, %% or a control character, which a segment of the URL's path cannot`)
	}

	return url.PathEscape(value), nil
}

// checkHeaderValue refuses values that would begin another header. An error does not contain the value.
func checkHeaderValue(value string) (string, error) {
	if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return "", fmt.Errorf("contains a line break or another control character, which a header cannot")
	}
	return value, nil
}

// expandJSON returns a JSON value with the templates in its strings expanded. Names of fields, and all else, stay as
// they are.
func (v *values) expandJSON(ctx context.Context, raw json.RawMessage) ([]byte, error) {
	if !bytes.Contains(raw, []byte("${")) {
		return raw, nil
	}

	d := jx.GetDecoder()
	defer jx.PutDecoder(d)
	d.ResetBytes(raw)

	w := jx.Writer{Buf: make([]byte, 0, len(raw)+expandedSpace)}
	if err := v.copyJSON(ctx, d, &w); err != nil {
		return nil, err
	}

	return w.Buf, nil
}

// copyJSON copies the next value.
func (v *values) copyJSON(ctx context.Context, d *jx.Decoder, w *jx.Writer) error {
	switch d.Next() {
	case jx.String:
		text, err := d.Str()
		if err == nil {
			text, err = v.expand(ctx, text, nil)
		}
		if err == nil {
			w.Str(strings.ToValidUTF8(text, "\uFFFD"))
		}

		return jsonFailure(err)

	case jx.Object:
		w.ObjStart()
		more := false
		err := d.Obj(func(d *jx.Decoder, key string) error {
			if more {
				w.Comma()
			}
			more = true
			w.FieldStart(key)

			return v.copyJSON(ctx, d, w)
		})
		w.ObjEnd()

		return jsonFailure(err)

	case jx.Array:
		w.ArrStart()
		more := false
		err := d.Arr(func(d *jx.Decoder) error {
			if more {
				w.Comma()
			}
			more = true

			return v.copyJSON(ctx, d, w)
		})
		w.ArrEnd()

		return jsonFailure(err)
	}

	b, err := d.Raw()
	w.Raw(b)

	return jsonFailure(err)
}

// jsonFailure returns the error of a template as it is, and a *failure for all others, whose text may contain values.
func jsonFailure(err error) error {
	if err == nil {
		return nil
	}
	if f, ok := errors.AsType[*failure](err); ok {
		return f // jx adds words of its own
	}

	return &failure{kind: kindURL, message: "action.http.json is not valid JSON"}
}

const (
	secretReads   = 16                     // secrets that a node reads at the same time for HTTP attempts
	secretLimit   = 5 * time.Second        // time limit for one read
	secretTimeout = 30 * time.Second       // how long a read is repeated while etcd is unavailable
	secretPause   = 500 * time.Millisecond // pause between these reads
)

// secretSource reads values of secrets for one attempt, each secret once. It makes the mask hide each value that it has
// returned.
type secretSource struct {
	reader    process.Secrets // nil: the node has no key
	slots     chan struct{}   // limits the reads of all attempts
	forbidden bool            // by the policy of the node
	namespace string
	mayWait   func() error // nil: always
	mask      *mask.Masker

	read map[string]map[string]string // by the name of the secret
}

// value returns the value that NAME/KEY names. An error is a *failure and contains no value.
func (s *secretSource) value(ctx context.Context, ref string) (string, error) {
	name, key, err := task.ParseSecretRef(ref)
	if err != nil {
		return "", &failure{kind: kindSecret, message: err.Error()}
	}

	values, ok := s.read[name]
	if !ok {
		if values, err = s.readSecret(ctx, name); err != nil {
			return "", err
		}
		if s.read == nil {
			s.read = map[string]map[string]string{}
		}
		s.read[name] = values
	}

	v, ok := values[key]
	if !ok {
		return "", &failure{kind: kindSecret, message: fmt.Sprintf("secret %s does not contain %s", name, task.Quote(key))}
	}

	s.mask.Hide(v)
	s.mask.Hide(strings.ToLower(v)) // messages show the host of a URL in lower case

	return v, nil
}

// readSecret reads one secret. While etcd is unavailable it tries again, as long as the attempt may still start.
func (s *secretSource) readSecret(ctx context.Context, name string) (map[string]string, error) {
	refused := func(format string, args ...any) error {
		return &failure{kind: kindSecret, message: "secret " + name + fmt.Sprintf(format, args...)}
	}

	switch {
	case s.forbidden:
		return nil, &failure{kind: kindPolicy, message: "the node's policy: secrets: secret " + name + ": secrets are not allowed"}
	case s.reader == nil:
		return nil, refused(": this node has no key for secrets (secret_keys)")
	}

	for deadline := time.Now().Add(secretTimeout); ; {
		values, err := s.readOnce(ctx, name)

		switch {
		case err == nil:
			return values, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, task.ErrNotFound):
			return nil, refused(" does not exist in namespace %s", s.namespace)
		case !errors.Is(err, task.ErrUnavailable):
			return nil, refused(": %s", err)
		case time.Now().After(deadline):
			return nil, refused(": etcd did not answer")
		}

		if s.mayWait != nil {
			if err := s.mayWait(); err != nil {
				return nil, &failure{kind: kindTooLate, message: err.Error()}
			}
		}

		select {
		case <-time.After(secretPause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// readOnce reads one secret when fewer than secretReads are being read.
func (s *secretSource) readOnce(ctx context.Context, name string) (map[string]string, error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}

	ctx, cancel := context.WithTimeout(ctx, secretLimit)
	defer cancel()

	values, err := s.reader(ctx, s.namespace, name)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(err, task.ErrUnavailable) // it did not answer within secretLimit
	}

	return values, err
}
