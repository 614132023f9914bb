package process

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/carillonhq/carillon/pkg/policy"
	"github.com/carillonhq/carillon/pkg/task"
)

// Policy tells what the node's administrator allows, now. An error means that
// nobody knows: nothing starts.
type Policy func() (*policy.Policy, error)

// refusal is why an attempt is not started, with the reason that its end has.
type refusal struct {
	reason string
	error
}

func (r refusal) Unwrap() error { return r.error }

func refused(reason string, err error) error {
	if err == nil {
		return nil
	}
	return refusal{reason, err}
}

// isRefusal reports whether an error is one, and with which reason.
func isRefusal(err error) (reason string, is bool) {
	var r refusal
	is = errors.As(err, &r)
	return r.reason, is
}

// applyPolicy is an attempt as the node's policy lets it run: with its bounds. An error
// is a refusal.
func (l *Runner) applyPolicy(a task.Assigned) (task.Assigned, error) {
	if l.policy == nil {
		return a, nil
	}

	p, err := l.currentPolicy()
	if err != nil {
		return a, err
	}

	asks, err := l.policyAttempt(a)
	if err != nil {
		return a, err
	}
	if err := p.Check(asks); err != nil {
		return a, refused(task.ReasonPolicy, err)
	}

	bound, timeout, err := p.Bind(a.Action.Process, a.Timeout)
	if err != nil {
		return a, refused(task.ReasonPolicy, err)
	}

	a.Action.Process, a.Timeout = bound, timeout

	return a, nil
}

// errNoPolicy means that the policy cannot be read: who has one that can may start the
// attempt.
var errNoPolicy = errors.New("the node's policy")

// currentPolicy is the policy as it is now. An error is a refusal.
func (l *Runner) currentPolicy() (*policy.Policy, error) {
	p, err := l.policy()
	if err != nil {
		err = refused(task.ReasonPolicy, fmt.Errorf("%w: %w", errNoPolicy, err))
	}
	return p, err
}

// policyAttempt is what a policy judges of an attempt. It has no values of variables.
func (l *Runner) policyAttempt(a task.Assigned) (policy.Attempt, error) {
	as, err := accountFor(a.Action.Process, l.own)
	if err != nil {
		return policy.Attempt{}, err
	}

	uid := uint32(os.Geteuid())
	if as.credential != nil {
		uid = as.credential.Uid
	}

	groups, err := groupsNamed(a.Action.Process, l.own)
	if err != nil {
		return policy.Attempt{}, err
	}

	p := *a.Action.Process
	names := slices.AppendSeq(slices.Collect(maps.Keys(p.Env)), maps.Keys(a.Env))
	p.Env = nil

	return policy.Attempt{Process: &p, User: as.name, UID: uid, Groups: groups, Timeout: a.Timeout, Env: names}, nil
}

// groupsNamed are the groups that a process asks for. Root has them all.
func groupsNamed(p *task.Process, own account) (list []policy.Group, err error) {
	names := p.Groups
	if p.Group != "" {
		names = append(slices.Clip(names), p.Group)
	}

	if len(names) == 0 {
		return nil, nil
	}

	as, err := accountFor(&task.Process{User: p.User}, own)
	has := as.credential
	if err == nil && has == nil {
		has, err = ownCredential()
	}

	if err != nil {
		return nil, err
	}

	for _, name := range names {
		g, gid, err := groupOf(name)
		if err != nil {
			return nil, err
		}
		list = append(list, policy.Group{Name: g.Name, GID: gid, Own: has.Uid == 0 || has.Gid == gid || slices.Contains(has.Groups, gid)})
	}

	return list, nil
}

// judge judges an attempt with its program by the policy as it is at each call.
type judge struct {
	runner *Runner
	asks   policy.Attempt
}

// newPolicyJudge is nil without a policy.
func (l *Runner) newPolicyJudge(a task.Assigned) (*judge, error) {
	if l.policy == nil {
		return nil, nil
	}

	asks, err := l.policyAttempt(a)
	if err != nil {
		return nil, err
	}

	return &judge{l, asks}, nil
}

// resolveProgram returns what to execute, and the policy that allows it.
func (j *judge) resolveProgram(program string) (string, *policy.Policy, error) {
	p, err := j.runner.currentPolicy()
	if err != nil {
		return "", nil, err
	}

	err = p.Check(j.asks)
	if err == nil {
		err = stillBound(p, j.asks)
	}

	if err == nil {
		program, err = p.Program(program)
	}

	return program, p, refused(task.ReasonPolicy, err)
}

// errPolicyChanged means that the policy is another one than that by which the program was
// judged.
var errPolicyChanged = errors.New("the node's policy has changed")

// checkUnchanged is nil if the policy is still the one that allowed the program. It looks at
// none of the paths of the attempt.
func (j *judge) checkUnchanged(before *policy.Policy) error {
	p, err := j.runner.currentPolicy()
	if err == nil && p != before && !reflect.DeepEqual(p, before) {
		err = errPolicyChanged
	}
	return err
}

// stillBound is an error if the policy bounds an attempt otherwise than when it was
// prepared.
func stillBound(p *policy.Policy, asks policy.Attempt) error {
	bound, timeout, err := p.Bind(asks.Process, asks.Timeout)
	if err == nil && (timeout != asks.Timeout || !reflect.DeepEqual(bound, asks.Process)) {
		err = errors.New("the node's policy demands more of it than a moment ago")
	}
	return err
}

// judgeProgram has the policy judge the program that was found. It returns what to execute, which
// no link leads elsewhere, and what is to be asked directly before the fork: whether the
// policy is still the same.
func (w *prepared) judgeProgram(program, dir string) (real string, may func() error, err error) {
	judge, before := w.judge, w.mayStart
	if judge == nil {
		return program, before, nil
	}

	if !filepath.IsAbs(program) {
		program = filepath.Join(dir, program)
	}

	real, by, err := judge.resolveProgram(program)
	if err != nil {
		return "", nil, err
	}

	return real, func() error {
		if err := before(); err != nil {
			return err
		}
		return judge.checkUnchanged(by)
	}, nil
}
