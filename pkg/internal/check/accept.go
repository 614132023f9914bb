package check

import "github.com/carillonhq/carillon/pkg/task"

// checkAccepted checks that a new attempt has only what its task accepts from a manual run, and that it is on the node that
// the request for its run named (G29). The commit compares the entry, so this is exact.
func (j *attemptJudge) checkAccepted(ch *runChange, r *runHistory, put inboxPut, accept task.Accept) {
	given := task.ManualInput{Args: put.Args, Env: put.Env, TargetNode: put.TargetNode}
	if err := accept.Check(given); err != nil {
		j.breachTask("G29", ch.ref, r.tick, put.key, "run %s is dispatched with what its task does not accept: %v", ch.id, err)
	}

	if put.TargetNode != "" && put.TargetNode != put.node {
		j.breachTask("G29", ch.ref, r.tick, put.key, "run %s is assigned to node %s, but its request named %s", ch.id, put.node, put.TargetNode)
	}
}
