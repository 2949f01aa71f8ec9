import { CodedError, define, isCode, messageOf } from '../../base/index.ts';
import {
  type LabelSelector,
  type LabelSelectorRequirement,
  matchesRequirement,
} from '../../kube/index.ts';

type Labels = Readonly<Record<string, string>>;

/** A label selector that was checked. */
export interface Selector {
  matches(labels: Labels | undefined): boolean;
  /** As the API takes it, and kubectl shows it; `''` selects all. */
  readonly text: string;
}

interface Requirement {
  readonly key: string;
  readonly operator: 'In' | 'NotIn' | 'Exists' | 'DoesNotExist';
  readonly values: readonly string[];
  /** How it is written. */
  readonly text: string;
}

const OPERATORS = ['In', 'NotIn', 'Exists', 'DoesNotExist'] as const;
const PART = '[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?';
const SUBDOMAIN = '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*';
const KEY = new RegExp(`^(?:(?<domain>${SUBDOMAIN})/)?${PART}$`);
const VALUE = new RegExp(`^(${PART})?$`);
const DOMAIN_MAX = 253;
const VALUE_MAX = 63;
/** Longer ones are not looked at. A domain, a slash and a name. */
const KEY_MAX = 317;

/** Throws `BAD_SELECTOR`. Kubernetes: apimachinery, metav1.LabelSelectorAsSelector and labels.NewRequirement. */
export function selectorOf({ matchLabels, matchExpressions }: LabelSelector): Selector {
  const equal = Object.entries(matchLabels ?? {}).map(([key, value]) =>
    checked({ key, operator: 'In', values: [value], text: `${key}=${value}` }),
  );
  const expressions = (matchExpressions ?? []).map(({ key, operator, values }) => {
    const known = OPERATORS.find((each) => each === operator);
    if (!known) throw bad(`"${operator}" is not a valid label selector operator`);
    const list = values ?? [];
    return checked({ key, operator: known, values: list, text: textOf(key, known, list) });
  });
  return made([...equal, ...expressions]);
}

/** As {@link selectorOf}, for the form that `kubectl --selector` and actions of plugins have: `app=web,tier in (a,b),!old`. */
export function parseSelector(text: string): Selector {
  return made(termsOf(text));
}

function termsOf(text: string): Requirement[] {
  const terms = text.split(/,(?![^(]*\))/).map((term) => term.trim());
  return terms.length === 1 && terms[0] === '' ? [] : terms.map(parseTerm);
}

/**
 * A selector as the API has it, of what is typed at a command line. Throws `BAD_SELECTOR`, also for `!=`, which Velero's command line refuses.
 * Kubernetes: apimachinery, metav1.ParseToLabelSelector.
 */
export function labelSelectorOf(text: string): LabelSelector {
  const matchLabels: Record<string, string> = {};
  const matchExpressions: LabelSelectorRequirement[] = [];
  const terms = termsOf(text).sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0));
  for (const { key, operator, values, text: term } of terms) {
    if (operator === 'In' && term === `${key}=${values[0] ?? ''}`)
      define(matchLabels, key, values[0] ?? '');
    else if (term.includes('!='))
      throw bad(`"${term}" is not possible here; write "${key} notin (${values[0] ?? ''})"`);
    else {
      const list = values.length === 0 ? {} : { values: [...values].sort() };
      matchExpressions.push({ key, operator, ...list });
    }
  }
  return {
    ...(Object.keys(matchLabels).length > 0 && { matchLabels }),
    ...(matchExpressions.length > 0 && { matchExpressions }),
  };
}

/** Why these cannot be labels of an object; undefined where they can. */
export function labelsProblem(labels: Labels): string | undefined {
  try {
    selectorOf({ matchLabels: { ...labels } });
    return undefined;
  } catch (error) {
    if (!isCode(error, 'BAD_SELECTOR')) throw error;
    return String(error.facts['why']);
  }
}

function parseTerm(term: string): Requirement {
  const set = /^(\S+)\s+(in|notin)\s*\(([^()]*)\)$/.exec(term);
  if (set) {
    const [, key = '', word, list = ''] = set;
    const values = list.split(',').map((value) => value.trim());
    const operator = word === 'in' ? 'In' : 'NotIn';
    return checked({ key, operator, values, text: textOf(key, operator, values) });
  }
  const pair = /^([^=!\s]+)\s*(!=|==|=)\s*([^=!\s]*)$/.exec(term);
  if (pair) {
    const [, key = '', sign, value = ''] = pair;
    return sign === '!='
      ? checked({ key, operator: 'NotIn', values: [value], text: `${key}!=${value}` })
      : checked({ key, operator: 'In', values: [value], text: `${key}=${value}` });
  }
  const absent = /^!\s*(\S+)$/.exec(term);
  const operator = absent ? 'DoesNotExist' : 'Exists';
  const key = absent?.[1] ?? term;
  return checked({ key, operator, values: [], text: textOf(key, operator, []) });
}

function textOf(key: string, operator: Requirement['operator'], values: readonly string[]): string {
  switch (operator) {
    case 'In':
      return `${key} in (${[...values].sort().join(',')})`;
    case 'NotIn':
      return `${key} notin (${[...values].sort().join(',')})`;
    case 'Exists':
      return key;
    case 'DoesNotExist':
      return `!${key}`;
  }
}

function checked(requirement: Requirement): Requirement {
  const { key, operator, values } = requirement;
  const form = key.length > KEY_MAX ? null : KEY.exec(key);
  if (!form || (form.groups?.domain ?? '').length > DOMAIN_MAX)
    throw bad(`"${key.slice(0, KEY_MAX)}" is no key of a label`);
  const wantsValues = operator === 'In' || operator === 'NotIn';
  if (wantsValues && values.length === 0) throw bad(`"${operator}" of "${key}" needs values`);
  if (!wantsValues && values.length > 0) throw bad(`"${operator}" of "${key}" takes no values`);
  const wrong = values.find((value) => value.length > VALUE_MAX || !VALUE.test(value));
  if (wrong !== undefined) throw bad(`"${wrong.slice(0, KEY_MAX)}" is no value of a label`);
  return requirement;
}

function made(requirements: readonly Requirement[]): Selector {
  const sorted = [...requirements].sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0));
  return {
    text: sorted.map(({ text }) => text).join(','),
    matches: (labels = {}) =>
      sorted.every((requirement) => matchesRequirement(requirement, labels)),
  };
}

const bad = (why: string): CodedError =>
  new CodedError('BAD_SELECTOR', `the label selector cannot be used: ${why}`, { facts: { why } });

/** What is wrong with the selectors of a Backup or a Restore. */
export function selectorErrors({
  labelSelector,
  orLabelSelectors,
}: {
  readonly labelSelector?: LabelSelector | null | undefined;
  readonly orLabelSelectors?: readonly LabelSelector[] | null | undefined;
}): string[] {
  return [
    ...(labelSelector ? [{ field: 'labelSelector', selector: labelSelector }] : []),
    ...(orLabelSelectors ?? []).map((selector, index) => ({
      field: `orLabelSelectors[${index}]`,
      selector,
    })),
  ].flatMap(({ field, selector }) => {
    try {
      selectorOf(selector);
      return [];
    } catch (error) {
      return [`Invalid ${field}: ${messageOf(error)}`];
    }
  });
}
