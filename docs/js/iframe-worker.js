/* Search in pages that are opened from the disk. A browser starts no worker for a file: address, so the script of the
   search runs in a hidden frame instead. It sees what it sees in a worker: messages, postMessage and importScripts. */
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.documentElement.append(frame)
      const inner = frame.contentWindow
      const load = (address) =>
        new Promise((resolve, reject) => {
          const script = frame.contentDocument.createElement("script")
          script.src = address
          script.onload = resolve
          script.onerror = reject
          frame.contentDocument.head.append(script)
        })
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      inner.importScripts = async (...addresses) => {
        for (const address of addresses) await load(address)
      }
      this.inner = inner
      this.ready = load(new URL(url, location.href).href)
    }

    async postMessage(data) {
      await this.ready
      this.inner.dispatchEvent(new MessageEvent("message", { data }))
    }

    terminate() {
      this.inner.frameElement.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
