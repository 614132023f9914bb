package client

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// NodeLimitsService reads and writes limits of the labels that nodes may have.
type NodeLimitsService struct{ conn *connection }

// NodeLimitChange is the answer to a change of a limit.
type NodeLimitChange struct {
	task.NodeLimit
	Nodes  []LimitedNode `json:"nodes,omitempty" doc:"The present nodes that announce labels which the limit does not allow. Only if you may read nodes."`
	DryRun *Change       `json:"dry_run,omitempty" doc:"With dry_run=true: nothing was written, and this is the limit as it would be."`
}

// LimitedNode is a node that announces labels which its limit does not allow.
type LimitedNode struct {
	Name          string            `json:"name"`
	IgnoredLabels map[string]string `json:"ignored_labels"`
}

// List returns all limits.
func (s *NodeLimitsService) List(ctx context.Context) ([]task.NodeLimit, error) {
	return collectItems(iteratePages[task.NodeLimit](ctx, s.conn, "/v1/node-limits", url.Values{}, pageSize, 0, nil))
}

// Get reads the limit with exactly this name. It returns task.ErrNotFound if there is none.
func (s *NodeLimitsService) Get(ctx context.Context, name string) (task.NodeLimit, error) {
	return doLimit[task.NodeLimit](ctx, s.conn, name, call{method: http.MethodGet})
}

// Put writes a limit. The answer names present nodes that announce labels which it does not allow.
func (s *NodeLimitsService) Put(ctx context.Context, l task.NodeLimit, w Writing) (NodeLimitChange, error) {
	return doLimit[NodeLimitChange](ctx, s.conn, l.Name, call{method: http.MethodPut, body: l, header: w.conditionHeader()})
}

// DryRunPut is like Put, but writes nothing. NodeLimitChange.DryRun contains what would change.
func (s *NodeLimitsService) DryRunPut(ctx context.Context, l task.NodeLimit, w Writing) (NodeLimitChange, error) {
	return doLimit[NodeLimitChange](ctx, s.conn, l.Name, call{method: http.MethodPut, body: l, header: w.conditionHeader(), query: dryRun(url.Values{}, 0)})
}

// Delete deletes a limit. revision is the revision that it must have; 0: any.
func (s *NodeLimitsService) Delete(ctx context.Context, name string, revision int64) error {
	_, err := doLimit[struct{}](ctx, s.conn, name, call{method: http.MethodDelete, header: ifMatch(revision)})
	return err
}

// doLimit sends a call for one limit. Its name may be a prefix that ends in *.
func doLimit[T any](ctx context.Context, c *connection, name string, k call) (T, error) {
	var answer T
	if prefix, isPrefix := strings.CutSuffix(name, "*"); !isPrefix {
		if err := task.CheckName("name", name); err != nil {
			return answer, err
		}
	} else if strings.ContainsAny(prefix, "*/") {
		return answer, task.Invalid(task.CodeBadName, "name", "%s is not the name of a node, or a prefix of names that ends in *", task.Quote(name))
	}

	k.path = "/v1/node-limits/" + url.PathEscape(name)
	if k.method == http.MethodDelete {
		return answer, c.doCall(ctx, k, nil)
	}

	err := c.doCall(ctx, k, &answer)

	return answer, err
}
