/* Lets the search run when a page is opened from a file.

Browsers start no worker there. This is a stand-in: it runs the worker's script
in a hidden frame and passes the messages. The theme asks for `IFrameWorker` to
find its way about in the frame. */
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.waiting = []
      this.inside.postMessage = (data) =>
        this.dispatchEvent(new MessageEvent("message", { data }))
      this.inside.importScripts = (...urls) =>
        urls.reduce(
          (before, one) => before.then(() => this.load(one)),
          Promise.resolve(),
        )
      this.load(url).then(() => {
        this.ready = true
        this.waiting.forEach((data) => this.tell(data))
      })
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.inside.document.createElement("script")
        script.src = url
        script.onload = resolve
        script.onerror = reject
        this.inside.document.body.append(script)
      })
    }

    postMessage(data) {
      if (this.ready) this.tell(data)
      else this.waiting.push(data)
    }

    tell(data) {
      this.inside.dispatchEvent(new MessageEvent("message", { data }))
    }
  }
}
