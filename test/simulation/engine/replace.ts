export type Undo = () => void;

/** Replaces a property. Returns an undo function. */
export function replace<T extends object>(target: T, key: keyof T, value: unknown): Undo {
  const descriptor = Object.getOwnPropertyDescriptor(target, key);
  Object.defineProperty(target, key, { value, configurable: true, writable: true });
  return () => {
    if (descriptor) Object.defineProperty(target, key, descriptor);
    else Reflect.deleteProperty(target, key);
  };
}
