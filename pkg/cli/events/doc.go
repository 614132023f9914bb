// Package events is "carillon events": what happens in the cluster, as it happens.
package events
