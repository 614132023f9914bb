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

// Policy returns the current policy of the node's administrator. An error means that it
// cannot be read; then no attempt starts.
type Policy func() (*policy.Policy, error)

// policyRefusal is an error that ends an attempt without a start. reason is the reason in the record of its end.
type policyRefusal struct {
	reason string
	error
}

func (r policyRefusal) Unwrap() error { return r.error }

// asRefusal makes err a refusal. It returns nil if err is nil.
func asRefusal(reason string, err error) error {
	if err == nil {
		return nil
	}
	return policyRefusal{reason, err}
}

// isRefusal reports whether an error is a refusal, and returns its reason.
func isRefusal(err error) (reason string, is bool) {
	var r policyRefusal
	is = errors.As(err, &r)
	return r.reason, is
}

// applyPolicy returns the attempt with the limits that the node's policy adds. An error
// means that the policy does not allow the attempt, or cannot be read.
func (ru *Runner) applyPolicy(a task.Assigned) (task.Assigned, error) {
	if ru.policy == nil {
		return a, nil
	}

	p, err := ru.currentPolicy()
	if err != nil {
		return a, err
	}

	asks, err := ru.policyAttempt(a)
	if err != nil {
		return a, err
	}
	if err := p.Check(asks); err != nil {
		return a, asRefusal(task.ReasonPolicy, err)
	}

	bound, timeout, err := p.Bind(a.Action.Process, a.Timeout)
	if err != nil {
		return a, asRefusal(task.ReasonPolicy, err)
	}

	a.Action.Process, a.Timeout = bound, timeout

	return a, nil
}

// errNoPolicy means that the policy cannot be read. The attempt is handed back, because another
// node may be able to start it.
var errNoPolicy = errors.New("the node's policy")

// currentPolicy reads the policy. An error is a refusal that wraps errNoPolicy.
func (ru *Runner) currentPolicy() (*policy.Policy, error) {
	p, err := ru.policy()
	if err != nil {
		err = asRefusal(task.ReasonPolicy, fmt.Errorf("%w: %w", errNoPolicy, err))
	}
	return p, err
}

// policyAttempt returns the properties of an attempt that a policy judges. It contains the names of variables but no
// values, which may be secrets.
func (ru *Runner) policyAttempt(a task.Assigned) (policy.Attempt, error) {
	as, err := ru.account(a.Action.Process)
	if err != nil {
		return policy.Attempt{}, err
	}

	uid := uint32(os.Geteuid())
	if as.credential != nil {
		uid = as.credential.Uid
	}

	groups, err := groupsNamed(a.Action.Process, ru.without)
	if err != nil {
		return policy.Attempt{}, err
	}

	p := *a.Action.Process
	names := slices.AppendSeq(slices.Collect(maps.Keys(p.Env)), maps.Keys(a.Env))
	p.Env = nil

	return policy.Attempt{Process: &p, User: as.name, UID: uid, Groups: groups, Timeout: a.Timeout, Env: names}, nil
}

// groupsNamed returns the groups that the task names. Own is set for those that its user has anyway; root has all of
// them.
func groupsNamed(p *task.Process, without defaultAccount) (list []policy.Group, err error) {
	names := p.Groups
	if p.Group != "" {
		names = append(slices.Clip(names), p.Group)
	}

	if len(names) == 0 {
		return nil, nil
	}

	// The groups that the user has without those that the task names.
	as, err := accountFor(&task.Process{User: p.User}, without)
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

// policyJudge checks an attempt and its program against the policy that is current at each call.
type policyJudge struct {
	runner *Runner
	asks   policy.Attempt // with the limits that the policy had added
}

// newPolicyJudge returns a judge for an attempt that applyPolicy has bound, or nil if the node has no policy.
func (ru *Runner) newPolicyJudge(a task.Assigned) (*policyJudge, error) {
	if ru.policy == nil {
		return nil, nil
	}

	asks, err := ru.policyAttempt(a)
	if err != nil {
		return nil, err
	}

	return &policyJudge{ru, asks}, nil
}

// resolveProgram returns the path to execute, with its symbolic links resolved, and the policy that allows it. It
// touches the path, so it may hang.
func (j *policyJudge) resolveProgram(program string) (string, *policy.Policy, error) {
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

	return program, p, asRefusal(task.ReasonPolicy, err)
}

// errPolicyChanged means that the policy has changed since the program was judged. The program has to be
// judged again.
var errPolicyChanged = errors.New("the node's policy has changed")

// checkUnchanged returns nil if the policy is still the one that allowed the program. It accesses none of the
// attempt's paths, so it cannot hang in the thread that forks.
func (j *policyJudge) checkUnchanged(before *policy.Policy) error {
	p, err := j.runner.currentPolicy()
	if err == nil && p != before && !reflect.DeepEqual(p, before) {
		err = errPolicyChanged
	}
	return err
}

// stillBound returns an error if the policy now adds other limits than those with which the attempt was
// prepared. Limits cannot be changed at this point, so the attempt fails.
func stillBound(p *policy.Policy, asks policy.Attempt) error {
	bound, timeout, err := p.Bind(asks.Process, asks.Timeout)
	if err == nil && (timeout != asks.Timeout || !reflect.DeepEqual(bound, asks.Process)) {
		err = errors.New("the node's policy has become stricter in the meantime")
	}
	return err
}

// judgeProgram checks the program against the policy. It returns the path to execute, which contains no
// symbolic link that could be changed afterwards, and a function to call directly before the fork. That function also
// checks that the policy has not changed.
func (p *preparedAttempt) judgeProgram(program, dir string) (real string, may func() error, err error) {
	judge, before := p.judge, p.mayStart
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
