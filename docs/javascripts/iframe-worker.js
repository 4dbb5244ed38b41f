// Search in pages that are opened as files: browsers start no worker from a file, so its script runs in a hidden
// frame. Material for MkDocs awaits `importScripts`, which loads the search index here.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      const scope = frame.contentWindow
      const own = new URL(url, document.baseURI)
      const load = (each) => new Promise((resolve, reject) => {
        const script = scope.document.createElement("script")
        script.src = new URL(each, own).href
        script.onload = resolve
        script.onerror = () => reject(new Error(`cannot load ${script.src}`))
        scope.document.body.appendChild(script)
      })
      scope.importScripts = async (...urls) => { for (const each of urls) await load(each) }
      scope.postMessage = (data) => this.answer(data)
      this.scope = scope
      this.loaded = load(own)
    }

    answer(data) {
      const event = new MessageEvent("message", { data })
      this.dispatchEvent(event)
      if (this.onmessage) this.onmessage(event)
    }

    postMessage(data) {
      this.loaded.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {}
  }
}
