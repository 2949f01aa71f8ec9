import { lookup } from '../../base/index.ts';

/** `metadata.name=x,spec.nodeName!=y`, with any path. */
export function parseFieldSelector(text: string): (object: object) => boolean {
  const tests = splitTop(text).map((term) => {
    const [, path = '', operator, value = ''] = /^([^=!]+)(!=|==|=)(.*)$/.exec(term) ?? [];
    const steps = path.split('.');
    return (object: object): boolean => {
      let at: unknown = object;
      for (const step of steps) at = lookup(at as Record<string, unknown> | undefined, step);
      const text = typeof at === 'string' ? at : JSON.stringify(at ?? '').replaceAll('"', '');
      return (text === value) === (operator !== '!=');
    };
  });
  return (object) => tests.every((test) => test(object));
}

/** Splits at commas outside parentheses. */
const splitTop = (text: string): string[] =>
  text
    .split(/,(?![^(]*\))/)
    .map((term) => term.trim())
    .filter((term) => term !== '');
