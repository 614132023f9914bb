// Package events implements "carillon events".
package events
