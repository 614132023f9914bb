//go:build browser

package browsertest

import "testing"

// An alert is acknowledged and silenced by keys only, and the silence is ended. The page follows.
func TestAlerts_ByKeys(t *testing.T) {
	p := chrome.newTab(t)
	p.open("/ui")
	p.press("ga")
	p.awaitPage("/ui/alerts")
	p.ready()
	row := rowOf("nightly-report")
	p.await(row + `.textContent.includes("nobody")`)

	eval[bool](p, row+`.querySelector("button[name=one]").focus(), true`)
	p.press("\r")
	p.await(`document.querySelector(".banner.good")?.textContent.includes("acknowledged default/nightly-report:failures")`)
	p.await(row + `.textContent.includes("Take over")`)

	eval[bool](p, row+`.querySelector("td a.button").focus(), true`)
	p.press("\r")
	p.await(`document.activeElement.id === "until"`)
	p.press("\tdb-2 is repaired\r")
	p.await(`document.querySelector(".banner.good")?.textContent.includes("silenced nightly-report in default until")`)
	p.await(row + `.textContent.includes("db-2 is repaired")`)

	eval[bool](p, `document.querySelector("#silences button[aria-label*='nightly-report']").focus(), true`)
	p.press("\r")
	p.await(`document.querySelector(".banner.good")?.textContent.includes("ended the silence of nightly-report")`)
	p.await(`!` + row + `.textContent.includes("db-2 is repaired")`)
}

// The page of a receiver sends a test message, and shows its run.
func TestAlerts_TestMessage(t *testing.T) {
	p := chrome.newTab(t)
	p.open("/ui/tasks/default/slack")
	p.clickText("Send a test message")
	p.await(`location.pathname.startsWith("/ui/runs/default/") && document.body.innerText.includes("sent a test message to default/slack")`)
	p.await(`document.body.innerText.includes("This is a test. No alert has caused it.")`)
}
