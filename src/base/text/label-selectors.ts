import { CodedError, isCode, messageOf } from '../errors.ts';
import { define, lookup } from '../own-properties.ts';

/** Label selectors: parser, matcher, printer and validator for all their forms. */

type Labels = Readonly<Record<string, string>>;

export interface LabelSelectorRequirement {
  key: string;
  operator: string;
  values?: string[] | undefined;
}

/** The form in API objects. */
export interface LabelSelector {
  matchLabels?: Record<string, string> | undefined;
  matchExpressions?: LabelSelectorRequirement[] | undefined;
}

/** A validated label selector. */
export interface Selector {
  matches(labels: Labels | undefined): boolean;
  /** The form of the API and kubectl. `''` selects everything. */
  readonly text: string;
}

interface Requirement {
  readonly key: string;
  readonly operator: LabelOperator;
  readonly values: readonly string[];
  /** The text of the requirement. */
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
/** Length of a domain, a slash and a name. Longer keys are rejected without parsing. */
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

/** Whether the labels match the selector. A selector without conditions matches everything. */
export const matchesSelector = (selector: LabelSelector, labels: Labels = {}): boolean =>
  requirementsOf(selector).every((requirement) => matchesRequirement(requirement, labels));

/** An unknown operator of a newer Kubernetes matches nothing. */
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
 * Validates a selector. Throws `BAD_SELECTOR`. Kubernetes: apimachinery,
 * metav1.LabelSelectorAsSelector and labels.NewRequirement.
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

/** Parses the form of `kubectl --selector`: `app=web,tier in (a,b),!old`. Throws `BAD_SELECTOR`. */
export function parseSelector(text: string): Selector {
  return made(termsOf(text));
}

function termsOf(text: string): Requirement[] {
  const terms = text.split(/,(?![^(]*\))/).map((term) => term.trim());
  return terms.length === 1 && terms[0] === '' ? [] : terms.map(parseTerm);
}

/**
 * Converts a command line selector to the API's form. Throws `BAD_SELECTOR`, also for `!=`, because
 * Velero's command line rejects it. Kubernetes: apimachinery, metav1.ParseToLabelSelector.
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

/** Why these are not valid labels, or undefined. */
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
/** The other operators take no values. */
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

/** All errors in the selectors of a Backup or Restore. */
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
