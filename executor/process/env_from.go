package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/carillonhq/carillon/executor/mask"
	"github.com/carillonhq/carillon/pkg/envfile"
	"github.com/carillonhq/carillon/pkg/task"
)

// Secrets reads the current version of a secret and decrypts it. task.ErrUnavailable means
// that the caller may try again. No error contains a value.
type Secrets func(ctx context.Context, namespace, name string) (map[string]string, error)

const (
	secretReaders = 16                     // number of secrets that a node reads at the same time, so that a burst of starts does not burden etcd
	secretLimit   = 5 * time.Second        // time limit for one read
	secretTimeout = 30 * time.Second       // how long a read is repeated while etcd is unavailable
	secretPause   = 500 * time.Millisecond // pause between these reads
)

// secretReader passes the attempts' requests for secrets to a fixed number of goroutines.
type secretReader struct {
	requests chan secretRequest // unbuffered
	over     chan struct{}      // closed when no goroutine serves requests any more
}

type secretRequest struct {
	namespace, name string
	told            chan<- secretAnswer // buffered for one answer
}

type secretAnswer struct {
	values map[string]string
	err    error
}

func newSecretReader() secretReader {
	return secretReader{make(chan secretRequest), make(chan struct{})}
}

// serveRequests answers requests until ctx ends. It answers each request that it has received, so the requester can
// wait for the answer without its own time limit.
func (s secretReader) serveRequests(ctx context.Context, secrets Secrets) {
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-s.requests:
			limited, cancel := context.WithTimeout(ctx, secretLimit)
			values, err := secrets(limited, a.namespace, a.name)
			cancel()
			a.told <- secretAnswer{values, err} // does not block
		}
	}
}

// readSecret reads a secret. While etcd is unavailable it tries again, for up to secretTimeout and as long as may
// returns nil. It returns errCalledOff if off is closed or the runner stops.
func (s secretReader) readSecret(namespace, name string, may func() error, off <-chan struct{}) (map[string]string, error) {
	for deadline := time.Now().Add(secretTimeout); ; {
		// All readers may be busy. This wait ends early only if the start is called off or the runner stops.
		c := make(chan secretAnswer, 1)
		select {
		case s.requests <- secretRequest{namespace, name, c}:
		case <-off:
			return nil, errCalledOff
		case <-s.over:
			return nil, errCalledOff
		}

		a := <-c
		if !errors.Is(a.err, task.ErrUnavailable) || time.Now().After(deadline) {
			return a.values, a.err
		}
		// Stop waiting for etcd when the attempt may not start any more, for example after its start deadline.
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

// withEnvFrom returns the attempt with the variables from its env_from added to its process. Later entries of
// env_from override earlier ones, and the task's own variables override all of them. Values of secrets are added to
// hidden. An error for which hasReason is true is returned as it is; any other error is a refusal with the reason secret.
func (ru *Runner) withEnvFrom(a task.Assigned, hidden *mask.Masker, may func() error, o *Orders) (task.Assigned, error) {
	given := a.Action.Process
	if len(given.EnvFrom) == 0 {
		return a, nil
	}

	as, err := ru.account(given)
	if err != nil {
		return a, err
	}

	env := map[string]string{}

	for i, f := range given.EnvFrom {
		values, err := ru.valuesOf(a, f, as, may, o)
		if hasReason(err) {
			return a, err
		}

		if err == nil {
			values, err = f.Take(values)
		}

		if err != nil {
			return a, asRefusal(task.ReasonSecret, fmt.Errorf("env_from[%d]: %w", i, err))
		}

		if f.Secret != "" {
			for _, value := range values {
				hidden.HideText(value)
			}
		}

		maps.Copy(env, values)
	}

	maps.Copy(env, given.Env)
	// Copy the process: the executor's record must not contain the values.
	p := *given
	p.Env = env
	a.Action.Process = &p

	return a, nil
}

// valuesOf returns the variables of one entry of env_from.
func (ru *Runner) valuesOf(a task.Assigned, f task.EnvFrom, as account, may func() error, o *Orders) (map[string]string, error) {
	if f.Secret == "" {
		// The file may be on a file system that does not answer.
		b, err := runWithTimeout(ru.stuck, o.given, a.Timeout.Std(), "to read "+f.Source(), func() ([]byte, error) { return readAs(f.File, as) })
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

	return ru.secretValues(a.Namespace, f, may, o)
}

// secretValues returns the values of the secret of a namespace that f names.
func (ru *Runner) secretValues(namespace string, f task.EnvFrom, may func() error, o *Orders) (map[string]string, error) {
	if ru.secrets == nil {
		return nil, fmt.Errorf("%s: this node has no key for secrets (secret_keys)", f.Source())
	}

	values, err := ru.secretReader.readSecret(namespace, f.Secret, may, o.given)
	switch {
	case errors.Is(err, task.ErrNotFound):
		return nil, fmt.Errorf("%s does not exist in namespace %s", f.Source(), namespace)
	case errors.Is(err, task.ErrUnavailable):
		return nil, fmt.Errorf("%s: etcd did not answer", f.Source())
	case err != nil && !errors.Is(err, errCalledOff) && !errors.Is(err, ErrTooLate):
		return nil, fmt.Errorf("%s: %w", f.Source(), err)
	}

	return values, err
}

// dropEnvironment drops the runner's copies of the environment, which may contain secrets. It is called when the
// process has received its own copy.
func (p *runningProcess) dropEnvironment(prep *preparedAttempt) {
	process := *prep.process
	process.Env = nil
	prep.process, prep.env, prep.mayStart, prep.judge = &process, nil, nil, nil
	p.spawnRequest.env, p.spawnRequest.may = nil, nil
}
