package importer

import (
	"fmt"
	"maps"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// kubernetesGrace is the default of terminationGracePeriodSeconds.
const kubernetesGrace = 30

// buildProcess converts a pod to a process. If that is impossible, why gives the reason.
func (k *kubernetesJob) buildProcess(s *task.Spec, pod podSpec, o Options) (p *task.Process, why string) {
	k.setTarget(s, pod)
	k.setPodTimes(s, pod)
	k.noteRest("of the pod", pod.rest)

	if len(pod.Containers) != 1 {
		return nil, fmt.Sprintf("the pod has %d containers; only pods with one container are supported", len(pod.Containers))
	}
	if c := pod.Containers[0]; c.Image == "" && len(c.Command) == 0 {
		return nil, "the container has neither a command nor an image; " + kustomizeHint
	}
	if len(pod.InitContainers) > 0 {
		var names []string
		for _, c := range pod.InitContainers {
			names = append(names, c.Name)
		}
		if !o.DropInit {
			return nil, fmt.Sprintf("the init containers %s run before the container; to import the task without them, use --without-init", strings.Join(names, ", "))
		}
		k.addNote("the init containers are not run: %s", strings.Join(names, ", "))
	}

	c := pod.Containers[0]
	p = &task.Process{Dir: c.WorkingDir}
	if why := k.setContainerCommand(p, c); why != "" {
		return nil, why
	}

	k.addNote("runs as a process of the node, without the image %v and its files, variables and working directory", c.Image)
	k.setLimits(p, c.Resources)
	k.setSecurity(p, pod.SecurityContext, c.SecurityContext)
	if p.User == "" {
		k.addNote("the user of the image is not known: the task runs as the default_user of its node; to change that, set action.process.user")
	}
	k.noteRest("of the container", c.rest)

	return p, ""
}

// wellKnownLabels maps the labels that Kubernetes sets for nodes to those of Carillon.
var wellKnownLabels = map[string]string{"kubernetes.io/hostname": "node", "kubernetes.io/os": "os", "kubernetes.io/arch": "arch"}

// setTarget converts what selects the node of the pod. A node that the caller has chosen takes precedence.
func (k *kubernetesJob) setTarget(s *task.Spec, pod podSpec) {
	var terms []string
	if pod.NodeName != "" {
		terms = append(terms, "node = "+pod.NodeName)
	}
	for _, key := range slices.Sorted(maps.Keys(pod.NodeSelector)) {
		terms = append(terms, nodeLabel(key)+" = "+string(pod.NodeSelector[key]))
	}
	if pod.Affinity != nil {
		terms = append(terms, k.affinityTerms(*pod.Affinity)...)
	}

	if len(terms) == 0 {
		return
	}

	selector := strings.Join(terms, ", ")
	switch _, err := task.ParseSelector(selector); {
	case s.Target.Selector != "":
		k.addNote("the selection of nodes is replaced by %s: %s", s.Target.Selector, selector)
	case err != nil:
		k.addNote("the selection of nodes is omitted: %v", err)
	default:
		s.Target.Selector = selector
		k.addNote("its nodes need the labels of target.selector: %s", selector)
	}
}

// nodeLabel returns the label of nodes for a label of Kubernetes.
func nodeLabel(key string) string {
	if known, ok := wellKnownLabels[key]; ok {
		return known
	}
	return key
}

// affinityTerms returns the terms of a selector for what an affinity requires of nodes.
func (k *kubernetesJob) affinityTerms(a affinity) (terms []string) {
	k.noteRest("of the affinity", a.rest)
	if len(a.NodeAffinity.Preferred) > 0 {
		k.addNote("preferred nodes are not supported: target.strategy and target.order are similar")
	}

	required := a.NodeAffinity.Required.Terms
	if len(required) > 1 || len(required) == 1 && len(required[0].MatchFields) > 0 {
		k.addNote("the required node affinity is omitted, because it has alternatives or fields: set target.selector")
		return nil
	}

	for _, term := range required {
		for _, e := range term.MatchExpressions {
			values := make([]string, len(e.Values))
			for i, v := range e.Values {
				values[i] = string(v)
			}

			key, list := nodeLabel(e.Key), strings.Join(values, ", ")
			switch e.Operator {
			case "In":
				terms = append(terms, key+" in ("+list+")")
			case "NotIn":
				terms = append(terms, key+" notin ("+list+")")
			case "Exists":
				terms = append(terms, key)
			case "DoesNotExist":
				terms = append(terms, "!"+key)
			case "Gt":
				terms = append(terms, key+" > "+list)
			case "Lt":
				terms = append(terms, key+" < "+list)
			}
		}
	}

	return terms
}

// setPodTimes converts the time limits of the pod.
func (k *kubernetesJob) setPodTimes(s *task.Spec, pod podSpec) {
	grace := int64(kubernetesGrace)
	if n := pod.TerminationGracePeriodSeconds; n != nil {
		grace = max(*n, 0)
	}

	s.KillGrace = min(durationOf(grace), task.MaxGrace)
	if s.KillGrace < durationOf(grace) {
		k.addNote("terminationGracePeriodSeconds: %d is reduced to %s", grace, task.MaxGrace)
	}

	if n := pod.ActiveDeadlineSeconds; n != nil {
		if d := durationOf(max(*n, 1)); s.Timeout == 0 || d < s.Timeout {
			s.Timeout = d
		}
	}
}

// setContainerCommand converts the command and the variables. If that is impossible, why gives the reason.
func (k *kubernetesJob) setContainerCommand(p *task.Process, c container) (why string) {
	// command replaces the entry point of the image, and args are its arguments. Without command, the program is
	// known only if args begin with a shell.
	command, args := c.Command, c.Args
	if len(command) == 0 && len(args) > 1 && slices.Contains(posixShells, path.Base(string(args[0]))) {
		command, args = args, nil
		k.addNote("args is used as the command, assuming that the image has no entry point")
	}

	if len(command) == 0 {
		return fmt.Sprintf("the container has no command: only the image %v defines it", c.Image)
	}

	e := k.readEnv(c)
	p.Env, p.EnvFrom = e.literal, e.sources

	var words []reference
	for _, word := range slices.Concat(command, args) {
		words = append(words, e.expand(string(word)))
	}

	// The programs of an image are where its PATH says, and the image is not known.
	if _, set := p.Env["PATH"]; !set && !e.dynamic["PATH"] {
		if p.Env == nil {
			p.Env = map[string]string{}
		}
		p.Env["PATH"] = systemdPath
	}

	// A reference to a value that only the run has needs a shell.
	if len(e.derived) == 0 && !slices.ContainsFunc(words, reference.isDynamic) {
		for _, w := range words {
			p.Command = append(p.Command, w.text)
		}
		return ""
	}

	for _, v := range e.derived {
		p.Shell += "export " + v.name + "=" + v.value.shellWord() + "\n"
	}

	p.Shell += "exec"
	for _, w := range words {
		p.Shell += " " + w.shellWord()
	}

	return ""
}

// notInVariable matches what the name of a value in a secret must not have.
var notInVariable = regexp.MustCompile(`^[0-9]|[^A-Za-z0-9_]`)

// kubeEnv is the environment of a container.
type kubeEnv struct {
	literal map[string]string // variables with a value in the file
	sources []task.EnvFrom
	derived []derivedVariable // variables that refer to others that only the run has
	dynamic map[string]bool   // those, and the variables from secrets
	open    bool              // the names of some variables are not in the file
}

// derivedVariable is a variable whose value refers to others.
type derivedVariable struct {
	name  string
	value reference
}

// reference is a text in which a run replaces some references by values.
type reference struct {
	text  string   // without those references
	parts []string // the text between them, and the names of the variables in turn; nil: there are none
	open  bool     // a variable may not exist; then the reference remains as it is
}

func (r reference) isDynamic() bool { return len(r.parts) > 1 }

// shellWord returns the text as a word of the shell.
func (r reference) shellWord() string {
	if !r.isDynamic() {
		return shellQuote(r.text)
	}

	var b strings.Builder
	for i, part := range r.parts {
		switch {
		case i%2 == 0 && part != "":
			b.WriteString(shellQuote(part))
		case i%2 == 1 && r.open:
			fmt.Fprintf(&b, `"${%s-\$(%s)}"`, part, part)
		case i%2 == 1:
			fmt.Fprintf(&b, `"${%s}"`, part)
		}
	}

	return b.String()
}

// readEnv reads env and envFrom. As in Kubernetes, env overrides envFrom.
func (k *kubernetesJob) readEnv(c container) *kubeEnv {
	e := &kubeEnv{dynamic: map[string]bool{}}
	var secrets, optional, configMaps, unresolved []string

	for _, from := range c.EnvFrom {
		switch {
		case from.SecretRef != nil:
			e.sources = append(e.sources, task.EnvFrom{Secret: from.SecretRef.Name, Prefix: from.Prefix})
			secrets = append(secrets, from.SecretRef.Name)
			if from.SecretRef.Optional {
				optional = append(optional, from.SecretRef.Name)
			}
			e.open = true
		case from.ConfigMapRef != nil:
			configMaps = append(configMaps, from.ConfigMapRef.Name)
		}
	}

	for _, v := range c.Env {
		switch {
		case v.ValueFrom == nil:
			e.addVariable(v.Name, string(v.Value))
		case v.ValueFrom.SecretKeyRef != nil:
			ref := v.ValueFrom.SecretKeyRef
			key := notInVariable.ReplaceAllString(ref.Key, "_")
			if key != ref.Key {
				k.addNote("store the key %s of the secret %s as %s", ref.Key, ref.Name, key)
			}
			e.addSecret(ref.Name, key, v.Name)
			secrets = append(secrets, ref.Name)
			if ref.Optional {
				optional = append(optional, ref.Name+"/"+ref.Key)
			}
		default:
			unresolved = append(unresolved, v.Name)
		}
	}

	if len(secrets) > 0 {
		slices.Sort(secrets)
		k.addNote("it needs these secrets (carillon secret set): %s", strings.Join(slices.Compact(secrets), ", "))
	}
	if len(optional) > 0 {
		k.addNote("these secrets are optional in Kubernetes, but without them the task fails: %s", strings.Join(optional, ", "))
	}
	if len(configMaps) > 0 {
		k.addNote("config maps are not supported: write their values in env, or in a file for env_from: %s", strings.Join(configMaps, ", "))
	}
	if len(unresolved) > 0 {
		k.addNote("these variables have no value in the file: %s", strings.Join(unresolved, ", "))
	}

	return e
}

// addVariable adds a variable of env.
func (e *kubeEnv) addVariable(name, value string) {
	r := e.expand(value)
	e.forget(name)
	if r.isDynamic() && shellName.MatchString(name) {
		e.derived = append(e.derived, derivedVariable{name, r})
		e.dynamic[name] = true
		return
	}

	if e.literal == nil {
		e.literal = map[string]string{}
	}
	e.literal[name] = r.text
}

// forget removes a variable that a later one of the same name replaces.
func (e *kubeEnv) forget(name string) {
	delete(e.literal, name)
	delete(e.dynamic, name)
	e.derived = slices.DeleteFunc(e.derived, func(v derivedVariable) bool { return v.name == name })
}

// addSecret adds a variable that has the value of a key of a secret.
func (e *kubeEnv) addSecret(secret, key, name string) {
	e.forget(name)
	e.dynamic[name] = true

	if n := len(e.sources) - 1; n >= 0 && e.sources[n].Secret == secret && e.sources[n].Keys != nil && e.sources[n].Keys[key] == "" {
		e.sources[n].Keys[key] = name
		return
	}

	e.sources = append(e.sources, task.EnvFrom{Secret: secret, Keys: map[string]string{key: name}})
}

// expand replaces $(NAME) by values, as Kubernetes does: it reads up to the next closing parenthesis, whatever is before
// it, so that a command substitution of a shell remains as it is. Unknown references remain, too, and $$ is a $.
func (e *kubeEnv) expand(text string) reference {
	r := reference{parts: []string{""}}
	add := func(s string) {
		r.text += s
		r.parts[len(r.parts)-1] += s
	}

	for {
		before, rest, found := strings.Cut(text, "$")
		add(before)
		if !found {
			return r
		}

		name, after, closed := strings.Cut(strings.TrimPrefix(rest, "("), ")")
		switch {
		case strings.HasPrefix(rest, "$"):
			add("$")
			text = rest[1:]
			continue
		case !strings.HasPrefix(rest, "(") || !closed:
			add("$" + rest[:min(1, len(rest))])
			text = rest[min(1, len(rest)):]
			continue
		}

		text = after
		value, known := e.literal[name]
		switch {
		case known:
			add(value)
		case (e.dynamic[name] || e.open) && shellName.MatchString(name):
			r.open = r.open || !e.dynamic[name]
			r.parts = append(r.parts, name, "")
			r.text += "$(" + name + ")"
		default:
			add("$(" + name + ")")
		}
	}
}

// setLimits converts the limits of the container.
func (k *kubernetesJob) setLimits(p *task.Process, r resources) {
	for _, name := range slices.Sorted(maps.Keys(r.Limits)) {
		n, ok := parseQuantity(string(r.Limits[name]))
		switch {
		case name == "cpu" && ok:
			p.Limits.CPU = n
		case name == "memory" && ok:
			p.Limits.Memory = task.Size(n)
		default:
			k.addNote("the limit %s = %s of the container is not supported", name, quoteShort(string(r.Limits[name])))
		}
	}

	if len(r.Requests) > 0 {
		k.ignored = append(k.ignored, "resources.requests")
	}

	k.noteRest("of the resources", r.rest)
}

var quantityForm = regexp.MustCompile(`^([0-9]*\.?[0-9]+|[0-9]+\.)(|[numkMGTPE]|[KMGTPE]i|[eE][-+]?[0-9]+)$`)

// parseQuantity parses a quantity of Kubernetes: 500m, 1.5, 128Mi, 1e3.
func parseQuantity(text string) (float64, bool) {
	m := quantityForm.FindStringSubmatch(text)
	if m == nil {
		return 0, false
	}

	unit := 1.0
	switch suffix := m[2]; {
	case suffix == "":
	case strings.HasSuffix(suffix, "i"):
		unit = math.Pow(1024, float64(strings.Index("KMGTPE", suffix[:1])+1))
	case len(suffix) == 1:
		unit = map[string]float64{"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}[suffix]
	default:
		n, err := strconv.ParseFloat(text, 64)
		return n, err == nil && n < 1e18
	}

	n, err := strconv.ParseFloat(m[1], 64)

	return n * unit, err == nil && n*unit < 1e18
}

// setSecurity converts the user, the groups and the privileges. The container overrides the pod.
func (k *kubernetesJob) setSecurity(p *task.Process, pod, c securityContext) {
	if id := firstSet(c.RunAsUser, pod.RunAsUser); id != nil {
		p.User = strconv.FormatInt(*id, 10)
	}
	if id := firstSet(c.RunAsGroup, pod.RunAsGroup); id != nil {
		p.Group = strconv.FormatInt(*id, 10)
	}
	for _, id := range pod.SupplementalGroups {
		p.Groups = append(p.Groups, strconv.FormatInt(id, 10))
	}
	if nonRoot := firstSet(c.RunAsNonRoot, pod.RunAsNonRoot); nonRoot != nil {
		k.ignored = append(k.ignored, "runAsNonRoot")
		if *nonRoot && p.User == "0" {
			k.addNote("runAsNonRoot with runAsUser 0: Kubernetes does not start the container, and the task runs as root")
		}
	}
	if allow := c.AllowPrivilegeEscalation; allow != nil && !*allow {
		p.NoNewPrivs = true
	} else if allow != nil {
		k.ignored = append(k.ignored, "allowPrivilegeEscalation")
	}

	k.noteRest("of the security context of the pod", pod.rest)
	k.noteRest("of the security context", c.rest)
}

// firstSet returns the first value that is set.
func firstSet[T any](list ...*T) *T {
	for _, v := range list {
		if v != nil {
			return v
		}
	}

	return nil
}

// ignoredInKubernetes are fields that have no effect on a process of the node.
var ignoredInKubernetes = strings.Fields(`
	restartPolicy dnsPolicy dnsConfig schedulerName enableServiceLinks hostNetwork hostPID hostIPC hostname subdomain
	imagePullSecrets imagePullPolicy terminationMessagePath terminationMessagePolicy ports ttlSecondsAfterFinished manualSelector
	selector preemptionPolicy serviceAccount`)

// similarFields are what a task has instead of a field.
var similarFields = map[string]string{
	"priorityClassName":         "action.process.nice",
	"priority":                  "action.process.nice",
	"tolerations":               "target.selector",
	"topologySpreadConstraints": "target.strategy",
	"podFailurePolicy":          "retry.exit_codes",
	"successPolicy":             "target.succeed",
	"backoffLimitPerIndex":      "retry.attempts",
}

// noteRest adds notes about fields that are not converted.
func (k *kubernetesJob) noteRest(where string, rest kubeFields) {
	var lost, similar []string
	for _, name := range slices.Sorted(maps.Keys(rest)) {
		switch instead, ok := similarFields[name]; {
		case slices.Contains(ignoredInKubernetes, name):
			k.ignored = append(k.ignored, name)
		case ok:
			similar = append(similar, name+" (see "+instead+")")
		default:
			lost = append(lost, name)
		}
	}

	if len(similar) > 0 {
		k.addNote("fields %s that are not converted: %s", where, strings.Join(similar, ", "))
	}
	if len(lost) > 0 {
		k.addNote("fields %s that a task does not have: %s", where, strings.Join(lost, ", "))
	}
}
