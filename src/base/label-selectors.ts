import { CodedError, isCode, messageOf } from './errors.ts';
import { define, lookup } from './own-keys.ts';

/** Label selectors: one parser, matcher, printer and validator for all forms that they have. */

type Labels = Readonly<Record<string, string>>;

export interface LabelSelectorRequirement {
  key: string;
  operator: string;
  values?: string[] | undefined;
}

/** As objects of the API have it. */
export interface LabelSelector {
  matchLabels?: Record<string, string> | undefined;
  matchExpressions?: LabelSelectorRequirement[] | undefined;
}

/** A label selector that was checked. */
export interface Selector {
  matches(labels: Labels | undefined): boolean;
  /** As the API takes it, and kubectl shows it; `''` selects all. */
  readonly text: string;
}

interface Requirement {
  readonly key: string;
  readonly operator: LabelOperator;
  readonly values: readonly string[];
  /** How it is written. */
  readonly text: string;
}

export const LABEL_OPERATORS = ['In', 'NotIn', 'Exists', 'DoesNotExist'] as const;
type LabelOperator = (typeof LABEL_OPERATORS)[number];
const PART = '[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?';
const SUBDOMAIN = '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*';
const KEY = new RegExp(`^(?:(?<domain>${SUBDOMAIN})/)?${PART}$`);
const VALUE = new RegExp(`^(${PART})?$`);
const DOMAIN_MAX = 253;
const VALUE_MAX = 63;
/** A domain, a slash and a name. A longer key is refused unread. */
const KEY_MAX = 317;

/** All conditions of a selector in one list. */
export const requirementsOf = ({
  matchLabels,
  matchExpressions,
}: LabelSelector): LabelSelectorRequirement[] => [
  ...Object.entries(matchLabels ?? {}).map(([key, value]) => ({
    key,
    operator: 'In',
    values: [value],
  })),
  ...(matchExpressions ?? []),
];

/** Whether the labels fulfil the selector. A selector without conditions takes all. */
export const matchesSelector = (selector: LabelSelector, labels: Labels = {}): boolean =>
  requirementsOf(selector).every((requirement) => matchesRequirement(requirement, labels));

/** An operator of a newer Kubernetes takes nothing. */
function matchesRequirement(
  {
    key,
    operator,
    values = [],
  }: Readonly<Omit<LabelSelectorRequirement, 'values'>> & {
    readonly values?: readonly string[] | undefined;
  },
  labels: Labels,
): boolean {
  const value = lookup(labels, key);
  switch (operator) {
    case 'In':
      return value !== undefined && values.includes(value);
    case 'NotIn':
      return value === undefined || !values.includes(value);
    case 'Exists':
      return value !== undefined;
    case 'DoesNotExist':
      return value === undefined;
    default:
      return false;
  }
}

/**
 * Throws `BAD_SELECTOR`. Kubernetes: apimachinery, metav1.LabelSelectorAsSelector and
 * labels.NewRequirement.
 */
export function selectorOf({ matchLabels, matchExpressions }: LabelSelector): Selector {
  const equal = Object.entries(matchLabels ?? {}).map(([key, value]) =>
    checked({ key, operator: 'In', values: [value], text: `${key}=${value}` }),
  );
  const expressions = (matchExpressions ?? []).map(({ key, operator, values }) => {
    const known = LABEL_OPERATORS.find((each) => each === operator);
    if (!known) throw bad(`"${operator}" is not a valid label selector operator`);
    const list = values ?? [];
    return checked({ key, operator: known, values: list, text: textOf(key, known, list) });
  });
  return made([...equal, ...expressions]);
}

/** The form of `kubectl --selector`: `app=web,tier in (a,b),!old`. Throws `BAD_SELECTOR`. */
export function parseSelector(text: string): Selector {
  return made(termsOf(text));
}

function termsOf(text: string): Requirement[] {
  const terms = text.split(/,(?![^(]*\))/).map((term) => term.trim());
  return terms.length === 1 && terms[0] === '' ? [] : terms.map(parseTerm);
}

/**
 * Turns a selector of the command line into the form of the API. Throws `BAD_SELECTOR`, also for
 * `!=`, because Velero's command line refuses it.
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

function textOf(key: string, operator: LabelOperator, values: readonly string[]): string {
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

export function isLabelKey(key: string): boolean {
  const form = key.length > KEY_MAX ? null : KEY.exec(key);
  return form !== null && (form.groups?.domain ?? '').length <= DOMAIN_MAX;
}
export const isLabelValue = (value: string): boolean =>
  value.length <= VALUE_MAX && VALUE.test(value);
/** The other operators take none. */
export const takesValues = (operator: string): boolean => operator === 'In' || operator === 'NotIn';

function checked(requirement: Requirement): Requirement {
  const { key, operator, values } = requirement;
  if (!isLabelKey(key)) throw bad(`"${key.slice(0, KEY_MAX)}" is no key of a label`);
  const wantsValues = takesValues(operator);
  if (wantsValues && values.length === 0) throw bad(`"${operator}" of "${key}" needs values`);
  if (!wantsValues && values.length > 0) throw bad(`"${operator}" of "${key}" takes no values`);
  const wrong = values.find((value) => !isLabelValue(value));
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

/** All faults in the selectors of a Backup or a Restore. */
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
