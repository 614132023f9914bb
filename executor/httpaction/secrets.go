package httpaction

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/carillonhq/carillon/executor/mask"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	secretReads    = 16                     // secrets that a node reads at the same time for HTTP attempts
	secretLimit    = 5 * time.Second        // time limit for one read
	secretPatience = 30 * time.Second       // how long a read is repeated while etcd is unavailable
	secretPause    = 500 * time.Millisecond // pause between these reads
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

	for deadline := time.Now().Add(secretPatience); ; {
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
