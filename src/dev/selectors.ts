import { lookup } from '../base/index.ts';
type Labels = Readonly<Record<string, string>>;

/** `a=b,c!=d,e,!f,g in (x,y),h notin (z)`. */
export function parseLabelSelector(text: string): (labels: Labels) => boolean {
  const tests = splitTop(text).map((term): ((labels: Labels) => boolean) => {
    const set = /^(\S+)\s+(in|notin)\s+\(([^)]*)\)$/.exec(term);
    if (set) {
      const [, key = '', operator, list = ''] = set;
      const values = list.split(',').map((value) => value.trim());
      return (labels) => {
        const isIn = values.includes(lookup(labels, key) ?? '\u0000');
        return operator === 'in' ? isIn : !isIn;
      };
    }
    const pair = /^([^=!]+)(!=|==|=)(.*)$/.exec(term);
    if (pair) {
      const [, key = '', operator, value] = pair;
      return (labels) => (lookup(labels, key.trim()) === value?.trim()) === (operator !== '!=');
    }
    if (term.startsWith('!')) return (labels) => lookup(labels, term.slice(1)) === undefined;
    return (labels) => lookup(labels, term) !== undefined;
  });
  return (labels) => tests.every((test) => test(labels));
}

/** `metadata.name=x,spec.nodeName!=y`: any path. */
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

/** By commas outside parentheses. */
const splitTop = (text: string): string[] =>
  text
    .split(/,(?![^(]*\))/)
    .map((term) => term.trim())
    .filter((term) => term !== '');
