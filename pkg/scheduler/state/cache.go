package state

import (
	"container/list"
	"runtime"
	"sync"
	"weak"
)

// textCache keeps one value for each text as long as the value is in use. It holds weak pointers, so the
// garbage collector determines when a value is gone. It is safe for concurrent use.
type textCache[T any] struct {
	read func(text string) (*T, error) // parses a text; its result must depend on the text only

	mu     sync.Mutex
	byText map[string]weak.Pointer[T]
}

// newTextCache returns an empty cache of values that read makes of their texts.
func newTextCache[T any](read func(string) (*T, error)) *textCache[T] {
	return &textCache[T]{read: read, byText: map[string]weak.Pointer[T]{}}
}

// Get returns the value of a text: the one that is in use, or else a new one. The caller may change text
// afterwards. An error is not cached.
func (c *textCache[T]) Get(text []byte) (*T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if v := c.byText[string(text)].Value(); v != nil {
		return v, nil
	}

	own := string(text)
	v, err := c.read(own)
	if err != nil {
		return nil, err
	}

	c.byText[own] = weak.Make(v)
	runtime.AddCleanup(v, c.forgetUnused, own)

	return v, nil
}

// forgetUnused drops a text whose value was collected, unless a new value of the same text is in use by
// now.
func (c *textCache[T]) forgetUnused(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.byText[text].Value() == nil {
		delete(c.byText, text)
	}
}

// SharedDefinitions keeps the definitions of all shards of a node: most tasks have most of their definitions in common. A
// definition is kept until the last task that uses it is gone. It is safe for concurrent use.
type SharedDefinitions struct {
	timings  *textCache[Timing]
	fields   *textCache[PolicyFields]
	labels   *textCache[Labels]
	policies policyCache
}

// NewSharedDefinitions returns a SharedDefinitions without definitions.
func NewSharedDefinitions() *SharedDefinitions {
	return &SharedDefinitions{
		timings: newTextCache(NewTiming), fields: newTextCache(newPolicyFields), labels: newTextCache(newLabels),
		policies: policyCache{byParts: map[policyParts]weak.Pointer[Policy]{}},
	}
}

// ParseTiming returns the timing of a text, see NewTiming. It does not keep text.
func (s *SharedDefinitions) ParseTiming(text []byte) (*Timing, error) { return s.timings.Get(text) }

// ParsePolicy returns the policy with these fields and labels, both as in record.EntryParts. It does not keep
// the texts.
func (s *SharedDefinitions) ParsePolicy(fields, labels []byte) (*Policy, error) {
	var p Policy
	var err error
	if p.PolicyFields, err = s.fields.Get(fields); err != nil {
		return nil, err
	}

	if len(labels) > 0 {
		if p.Labels, err = s.labels.Get(labels); err != nil {
			return nil, err
		}
	}

	return s.policies.share(p), nil
}

// policyCache keeps one Policy for each combination of fields and labels as long as it is in use. It is safe
// for concurrent use.
type policyCache struct {
	mu      sync.Mutex
	byParts map[policyParts]weak.Pointer[Policy]
}

// policyParts are the parts of a policy. Two weak pointers are equal only if they were made from the same pointer,
// also after its value was collected.
type policyParts struct {
	fields weak.Pointer[PolicyFields]
	labels weak.Pointer[Labels]
}

// share returns the policy in use that is equal to p, or else a new one.
func (c *policyCache) share(p Policy) *Policy {
	parts := policyParts{weak.Make(p.PolicyFields), weak.Make(p.Labels)}

	c.mu.Lock()
	defer c.mu.Unlock()

	if shared := c.byParts[parts].Value(); shared != nil {
		return shared
	}

	shared := &Policy{PolicyFields: p.PolicyFields, Labels: p.Labels}
	c.byParts[parts] = weak.Make(shared)
	runtime.AddCleanup(shared, c.forgetUnused, parts)

	return shared
}

// forgetUnused drops a policy that was collected, unless an equal one is in use by now.
func (c *policyCache) forgetUnused(parts policyParts) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.byParts[parts].Value() == nil {
		delete(c.byParts, parts)
	}
}

// FlowPlans keeps plans of workflows, for all shards of a node. Beyond a limit of their size, it forgets those that were not used
// for the longest time: their shards read them again. It is safe for concurrent use.
type FlowPlans struct {
	mu    sync.Mutex
	limit int
	size  int
	byKey map[flowPlanKey]*list.Element
	used  list.List // of *keptPlan, the one used last first
}

// MaxFlowPlans is the usual limit of a FlowPlans, in bytes.
const MaxFlowPlans = 64 << 20

// flowPlanKey identifies a plan: a version of a task has one.
type flowPlanKey struct {
	uid        string
	generation int64
}

// keptPlan is a plan in a FlowPlans.
type keptPlan struct {
	key  flowPlanKey
	plan *FlowPlan
}

// NewFlowPlans returns a FlowPlans with a limit in bytes.
func NewFlowPlans(limit int) *FlowPlans {
	return &FlowPlans{limit: limit, byKey: map[flowPlanKey]*list.Element{}}
}

// Plan returns the plan of a version of the task with a uid, or nil if it is not kept.
func (c *FlowPlans) Plan(uid string, generation int64) *FlowPlan {
	c.mu.Lock()
	defer c.mu.Unlock()

	e := c.byKey[flowPlanKey{uid, generation}]
	if e == nil {
		return nil
	}
	c.used.MoveToFront(e)

	return e.Value.(*keptPlan).plan
}

// Keep keeps a plan. The plan that was kept last stays, however large it is.
func (c *FlowPlans) Keep(uid string, p *FlowPlan) {
	c.mu.Lock()
	defer c.mu.Unlock()

	key := flowPlanKey{uid, p.Generation}
	if e := c.byKey[key]; e != nil {
		c.used.MoveToFront(e)
		return
	}

	c.byKey[key] = c.used.PushFront(&keptPlan{key, p})
	c.size += p.size()

	for c.size > c.limit && c.used.Len() > 1 {
		oldest := c.used.Back()
		kept := c.used.Remove(oldest).(*keptPlan)
		delete(c.byKey, kept.key)
		c.size -= kept.plan.size()
	}
}
