// Browsers start no worker from disk. There the search of the site runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.document.open()
      // What the script in the frame posts is a message of this worker.
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.waiting = []
      frame.addEventListener("load", () => {
        const messages = this.waiting
        this.waiting = null
        messages.forEach(data => this.postMessage(data))
      })
      this.inside.document.write(`<!doctype html><body><script src="${url}"></script>`)
      this.inside.document.close()
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }))
    }
  }
}
