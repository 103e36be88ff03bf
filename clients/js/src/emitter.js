// An EventTarget whose events have a detail.

export class Emitter extends EventTarget {
  on(type, handler) {
    const listener = (event) => handler(event.detail);
    this.addEventListener(type, listener);
    return () => this.removeEventListener(type, listener);
  }
}

export function emit(target, type, detail) {
  target.dispatchEvent(new CustomEvent(type, { detail }));
}
