package api_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestSetCluster_PublicURLAndAlertReceivers(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	receiver := task.Task{Spec: task.Defaults(), UID: "u"}
	receiver.Name, receiver.Schedule, receiver.Action, receiver.Receiver = "slack", task.Schedules{"@manual"}, task.Action{Noop: &task.Noop{}}, &task.Receiver{}
	slack := ref("default", "slack")
	_, err := w.store.CreateTask(ctx, slack, receiver, task.NewEntry(receiver, receiver.CreatedAt, receiver.CreatedAt))
	must(t, err)
	w.create("plain", "@manual")

	now, err := w.Cluster.UpdateSettings(ctx, client.ClusterSettings{PublicURL: new("https://carillon.example.com/"), AlertReceivers: &[]string{"default/slack"}})
	must(t, err)
	st, err := w.Cluster.Status(ctx)
	must(t, err)
	if *now.PublicURL != "https://carillon.example.com" || st.PublicURL != *now.PublicURL || !slices.Equal(*now.AlertReceivers, []string{"default/slack"}) || !slices.Equal(st.AlertReceivers, *now.AlertReceivers) {
		t.Errorf("set %v and %v, shown %q and %v", *now.PublicURL, *now.AlertReceivers, st.PublicURL, st.AlertReceivers)
	}

	for _, c := range []struct {
		set   client.ClusterSettings
		field string
	}{
		{client.ClusterSettings{PublicURL: new("carillon.example.com")}, "public_url"},
		{client.ClusterSettings{AlertReceivers: &[]string{"slack"}}, "alert_receivers[0]"},
		{client.ClusterSettings{AlertReceivers: &[]string{"default/slack", "default/none"}}, "alert_receivers[1]"},
		{client.ClusterSettings{AlertReceivers: &[]string{"default/plain"}}, "alert_receivers[0]"},
	} {
		_, err := w.Cluster.UpdateSettings(ctx, c.set)
		var fault *client.Error
		if !errors.As(err, &fault) || fault.Field != c.field {
			t.Errorf("%v; want an error of %s", err, c.field)
		}
	}

	now, err = w.Cluster.UpdateSettings(ctx, client.ClusterSettings{PublicURL: new(""), AlertReceivers: &[]string{}})
	must(t, err)
	if *now.PublicURL != "" || len(*now.AlertReceivers) != 0 {
		t.Errorf("taken back: %q and %v", *now.PublicURL, *now.AlertReceivers)
	}
}

// The leader reports problems of receivers as alerts about the cluster. Open ones are warnings.
func TestCluster_WarnsOfItsAlerts(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	since := task.At(time.Date(2026, 11, 26, 10, 0, 0, 0, time.UTC))
	for code, a := range map[string]task.Alert{
		task.WarnReceivers:    {Text: "ops/slack is paused by ann while alerts wait", Since: since},
		task.WarnNotEvaluated: {Text: "it is over", Closed: &task.AlertClose{At: since}},
	} {
		w.put(w.store.Keys().ClusterAlert(code), record.EncodeAlert(a))
	}

	st, err := w.Cluster.Status(ctx)
	must(t, err)
	want := task.Warning{Code: task.WarnReceivers, Text: "ops/slack is paused by ann while alerts wait (since 2026-11-26T10:00:00Z)"}
	if !slices.Contains(st.WarningDetails, want) || slices.ContainsFunc(st.WarningDetails, func(x task.Warning) bool { return x.Code == task.WarnNotEvaluated }) {
		t.Errorf("warnings: %q", st.Warnings)
	}
}
