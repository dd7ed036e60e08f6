// Browsers start no worker for a page that was opened from a folder. There, a hidden frame does a worker's job.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.documentElement.appendChild(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = (data) => setTimeout(() => this.answer(structuredClone(data)))
      const script = inside.document.createElement("script")
      script.src = new URL(url, document.baseURI)
      this.ready = new Promise((done) => { script.onload = done })
      inside.document.body.appendChild(script)
    }
    postMessage(data) { // later and as a copy, as a worker gets it
      this.ready.then(() => setTimeout(() => {
        const inside = this.frame.contentWindow
        if (inside) inside.dispatchEvent(new MessageEvent("message", { data: inside.structuredClone(data) }))
      }))
    }
    answer(data) {
      const event = new MessageEvent("message", { data })
      this.dispatchEvent(event)
      if (this.onmessage) this.onmessage(event)
    }
    terminate() { this.frame.remove() }
  }
}
