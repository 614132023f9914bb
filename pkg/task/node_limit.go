package task

// NodeLimit limits which labels nodes may have. A node announces its labels itself, so without a limit it can give itself
// any label, and receives the runs whose selectors match it. Readers of nodes ignore labels that the limit does not list.
type NodeLimit struct {
	Name      string   `json:"name" doc:"The name of a node, or a prefix of names that ends in *. The longest match applies to a node."`
	Labels    []string `json:"labels" doc:"The labels that the node may have: KEY=VALUE, KEY=* for any value, or * for any label. The labels node, os and arch are always allowed."`
	CreatedAt Time     `json:"created_at,omitzero"`
	CreatedBy string   `json:"created_by,omitempty"`
	UpdatedAt Time     `json:"updated_at,omitzero"`
	UpdatedBy string   `json:"updated_by,omitempty"`
	Revision  int64    `json:"revision,omitempty" doc:"The value that If-Match compares."`
}

// MaxNodeLimitLabels is the maximum number of entries in a NodeLimit.
const MaxNodeLimitLabels = 256
