package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/carillonhq/carillon/pkg/envfile"
	"github.com/carillonhq/carillon/pkg/task"
)

// Secrets reads a secret as it is now, and decrypts it. task.ErrUnavailable means
// that it may be asked again. No error has a value in it.
type Secrets func(ctx context.Context, namespace, name string) (map[string]string, error)

const (
	secretReaders  = 16               // secrets that are read at once
	secretLimit    = 5 * time.Second  // for one of them
	secretPatience = 30 * time.Second // for etcd to answer
	secretPause    = 500 * time.Millisecond
)

// secretReader is how attempts get at secrets: a fixed number of them at once.
type secretReader struct {
	requests chan secretRequest
	over     chan struct{} // closed when nobody answers any more
}

type secretRequest struct {
	namespace, name string
	told            chan<- secretAnswer
}

type secretAnswer struct {
	values map[string]string
	err    error
}

func newSecretReader() secretReader {
	return secretReader{make(chan secretRequest), make(chan struct{})}
}

// serveRequests serves until ctx ends.
func (q secretReader) serveRequests(ctx context.Context, secrets Secrets) {
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-q.requests:
			limited, cancel := context.WithTimeout(ctx, secretLimit)
			values, err := secrets(limited, a.namespace, a.name)
			cancel()
			a.told <- secretAnswer{values, err} // it has room for one
		}
	}
}

// readSecret asks for a secret until there is an answer, unless that is called off.
func (q secretReader) readSecret(namespace, name string, may func() error, off <-chan struct{}) (map[string]string, error) {
	for deadline := time.Now().Add(secretPatience); ; {
		c := make(chan secretAnswer, 1)
		select {
		case q.requests <- secretRequest{namespace, name, c}:
		case <-off:
			return nil, errCalledOff
		case <-q.over:
			return nil, errCalledOff
		}

		a := <-c
		if !errors.Is(a.err, task.ErrUnavailable) || time.Now().After(deadline) {
			return a.values, a.err
		}
		if err := may(); err != nil {
			return nil, err
		}

		select {
		case <-time.After(secretPause):
		case <-off:
			return nil, errCalledOff
		}
	}
}

// withEnvFrom is an attempt with the variables that its env_from names among its
// own. An error that is not about being called off or too late is a refusal.
func (l *Runner) withEnvFrom(a task.Assigned, may func() error, o *Orders) (task.Assigned, error) {
	given := a.Action.Process
	if len(given.EnvFrom) == 0 {
		return a, nil
	}

	as, err := accountFor(given, l.own)
	if err != nil {
		return a, err
	}

	env := map[string]string{}

	for i, f := range given.EnvFrom {
		values, err := l.valuesOf(a, f, as, may, o)
		if hasReason(err) {
			return a, err
		}

		if err == nil {
			values, err = f.Take(values)
		}

		if err != nil {
			return a, refused(task.ReasonSecret, fmt.Errorf("env_from[%d]: %w", i, err))
		}

		maps.Copy(env, values)
	}

	maps.Copy(env, given.Env)
	p := *given
	p.Env = env
	a.Action.Process = &p

	return a, nil
}

func (l *Runner) valuesOf(a task.Assigned, f task.EnvFrom, as account, may func() error, o *Orders) (map[string]string, error) {
	if f.Secret == "" {
		b, err := within(l.stuck, o.given, a.Timeout.Std(), "to read "+f.Source(), func() ([]byte, error) { return readAs(f.File, as) })
		if err == nil && b == nil && !f.Optional {
			err = errors.New("does not exist")
		}

		if err == nil {
			var values map[string]string
			if values, err = envfile.Parse(b); err == nil {
				return values, nil
			}
		}

		return nil, fmt.Errorf("%s: %w", f.Source(), err)
	}

	if l.secrets == nil {
		return nil, fmt.Errorf("%s: this node has no key for secrets (secret_keys)", f.Source())
	}

	values, err := l.secretReader.readSecret(a.Namespace, f.Secret, may, o.given)
	switch {
	case errors.Is(err, task.ErrNotFound):
		return nil, fmt.Errorf("%s does not exist in namespace %s", f.Source(), a.Namespace)
	case errors.Is(err, task.ErrUnavailable):
		return nil, fmt.Errorf("%s: etcd did not answer", f.Source())
	case err != nil && !errors.Is(err, errCalledOff) && !errors.Is(err, ErrTooLate):
		return nil, fmt.Errorf("%s: %w", f.Source(), err)
	}

	return values, err
}

// dropEnvironment drops the environment of a process that has it by now: it may have
// secrets in it.
func (p *running) dropEnvironment(what *prepared) {
	process := *what.process
	process.Env = nil
	what.process, what.env, what.mayStart, what.judge = &process, nil, nil, nil
	p.spawnRequest.env, p.spawnRequest.may = nil, nil
}
