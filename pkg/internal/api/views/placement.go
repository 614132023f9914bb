package views

import (
	"fmt"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

// WriteWarnings returns the warnings about a task that was just written which depend on the present nodes.
func WriteWarnings(n *task.Namespace, spec task.Spec, nodes []task.Node) []task.Warning {
	return append(PlacementWarnings(n, spec, nodes), mailWarnings(n, spec, nodes)...)
}

// PlacementWarnings returns a warning if no present node, or too few of them, can run a task that was just
// written. The task is valid, because such a node may join later. But a selector with a typing error looks the
// same, and its author is reading this answer.
//
// The node selector of the task's namespace counts, too. n is the namespace's record; nil: there is none. nodes have the
// labels that their limits allow.
//
// It skips tasks that any node can run: `cluster status` reports if no node accepts runs at all.
func PlacementWarnings(n *task.Namespace, spec task.Spec, nodes []task.Node) []task.Warning {
	target, needsKey := spec.Target, spec.Action.NeedsKey()
	target.Selector = access.JoinSelector(n, target.Selector)

	isForAnyNode := target.Selector == "" && target.Strategy != task.StrategyFirst && !needsKey && !target.FansOut()
	if isForAnyNode || spec.Shadow {
		return nil
	}

	takers := target.Takers(nodes, needsKey)
	if target.Enough(len(takers)) {
		return nil
	}

	if len(takers) > 0 {
		fewNodes := "1 matching node accepts runs"
		if n := len(takers); n > 1 {
			fewNodes = fmt.Sprintf("%d matching nodes accept runs", n)
		}
		text := fmt.Sprintf("target: runs require %s, but only %s now; runs wait until more do", wantedNodes(target), fewNodes)

		return []task.Warning{{Code: task.WarnFewNodesMatch, Text: text}}
	}

	field, description := describeTarget(target, needsKey)
	if field == secretsField {
		field = fieldOfSecrets(spec.Action)
	}
	if field == "target.selector" && spec.Target.Selector == "" {
		field = "namespace " + n.Name // the selector is the namespace's
	}

	text := fmt.Sprintf("%s: no node%s accepts runs now; runs wait until one does", field, description)

	return []task.Warning{{Code: task.WarnNoNodeMatches, Text: text}}
}

// mailWarnings returns a warning if no present node that would run a task can mail its output.
func mailWarnings(n *task.Namespace, spec task.Spec, nodes []task.Node) []task.Warning {
	if len(spec.Output.Mail) == 0 {
		return nil
	}

	target := spec.Target
	target.Selector = access.JoinSelector(n, target.Selector)
	takers := target.Takers(nodes, spec.Action.NeedsKey())
	if len(takers) == 0 || slices.ContainsFunc(nodes, func(o task.Node) bool { return o.SendsMail && slices.Contains(takers, o.Name) }) {
		return nil
	}

	return []task.Warning{{Code: task.WarnNoSendmail,
		Text: "output.mail: no node that takes its runs now sends mail: they have no sendmail (setting sendmail), or mail: false"}}
}

// TargetWarnings returns a warning if the node that the request of a run named cannot take the run now. The run waits for this
// node, whatever the task's own target is, so a typing error would let it wait for ever.
func TargetWarnings(n *task.Namespace, spec task.Spec, node string, nodes []task.Node) []task.Warning {
	needsKey := spec.Action.NeedsKey()
	target := task.Target{Strategy: task.StrategyFirst, Order: []string{node}, Selector: access.JoinSelector(n, "")}
	if spec.Shadow || len(target.Takers(nodes, needsKey)) > 0 {
		return nil
	}

	names := make([]string, len(nodes))
	for i := range nodes {
		names[i] = nodes[i].Name
	}

	text := fmt.Sprintf("target: no node named %s is present; the run waits until it joins", node)
	switch near := task.Nearest(node, names); {
	case slices.Contains(names, node):
		text = fmt.Sprintf("target: node %s does not accept this run now; the run waits until it does", node)
	case near != "":
		text += fmt.Sprintf("; did you mean %s?", near)
	}

	return []task.Warning{{Code: task.WarnNoNodeMatches, Text: text}}
}

// wantedNodes describes how many nodes a run with parts needs.
func wantedNodes(target task.Target) string {
	if target.Count == task.All {
		return fmt.Sprintf("%s to succeed", target.Succeed)
	}

	return fmt.Sprintf("%s nodes", target.Count)
}

// secretsField stands for the field of an action that names secrets.
const secretsField = "action"

// fieldOfSecrets returns the field of an action that names secrets.
func fieldOfSecrets(a task.Action) string {
	switch {
	case a.HTTP != nil:
		return "action.http"
	case a.Process != nil && !slices.ContainsFunc(a.Process.EnvFrom, func(f task.EnvFrom) bool { return f.Secret != "" }):
		return "action.process.stdin"
	}

	return "action.process.env_from"
}

// describeTarget names the field that restricts the nodes of a task, and describes the nodes that it allows. The
// description begins with a space, or is empty if every node is allowed.
func describeTarget(target task.Target, needsKey bool) (field, description string) {
	var conditions []string

	if target.Selector != "" {
		field = "target.selector"
		conditions = append(conditions, "that matches "+task.Quote(target.Selector))
	}

	if target.Strategy == task.StrategyFirst {
		field = "target.order"
		conditions = append(conditions, "among "+strings.Join(target.Order, ", "))
	}

	if needsKey {
		if field == "" {
			field = secretsField
		}

		conditions = append(conditions, "with a key for secrets")
	}

	if field == "" {
		field = "target"
	}

	for _, c := range conditions {
		description += " " + c
	}

	return field, description
}
