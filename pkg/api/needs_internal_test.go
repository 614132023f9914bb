package api

import "testing"

func TestNewLanguage(t *testing.T) {
	for expr, isNew := range map[string]bool{
		"0 0 L * *": true, "0 0 LW * *": true, "0 0 15W * *": true, "0 0 1,15w * *": true, "0 0 * * 5L": true, "0 0 * * friL": true, "0 0 * * 5#3": true,
		"0 0 * * FRI#2": true, "h * * * *": true, "0,H(3-9)/2 * * * *": true, "@every 1h  after completion": true,
		"0 0 * JUL *": false, "0 0 * 1-jul *": false, "0 0 * * WED,THU": false, "0 0 1 MAR-JUL SUN": false, "@hourly": false, "@at 2026-12-24T18:00:00Z": false, "*/5 * * * *": false,
	} {
		if newLanguage(expr) != isNew {
			t.Errorf("%s: %v", expr, !isNew)
		}
	}
}
