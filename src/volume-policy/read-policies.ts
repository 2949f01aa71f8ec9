import type { Node } from 'yaml';
import {
  ACTION_TYPES,
  type ActionType,
  isActionType,
  PARAMETERS,
  type PolicyAction,
} from './actions.ts';
import { parseRange, parseQuantity, NO_QUANTITY } from './capacity.ts';
import type { Conditions } from './conditions.ts';
import { type FilterPolicies, readFilters } from './filters.ts';
import type { PolicyProblem } from './problems.ts';
import type { VolumeRule } from './rule.ts';
import { VOLUME_TYPES } from './volume-types.ts';
import { nearest, orList } from './similar-words.ts';
import { cut, joined, YamlDocument } from './yaml/yaml-document.ts';
import { type Field, fieldsOf } from './yaml/yaml-fields.ts';

export interface ReadPolicies {
  readonly problems: readonly PolicyProblem[];
  readonly warnings: readonly PolicyProblem[];
  readonly rules: readonly VolumeRule[];
  readonly filters: FilterPolicies;
}

/** Collects all problems at once. Velero: internal/resourcepolicies/resource_policies.go. */
export function readPolicies(
  text: string,
  source: { readonly source: string; readonly firstLine: number },
): ReadPolicies {
  const document = new YamlDocument(text, source);
  const { rules, filters } = readRoot(document);
  const { problems, warnings } = document;
  return { problems, warnings, rules, filters };
}

const PARTS = [
  'version',
  'volumePolicies',
  'includeExcludePolicy',
  'clusterScopedFilterPolicy',
  'namespacedFilterPolicies',
] as const;

function readRoot(document: YamlDocument): Pick<ReadPolicies, 'rules' | 'filters'> {
  const nothing = { rules: [], filters: {} };
  const { root } = document;
  if (root === undefined) return nothing;
  if (root === null) {
    document.wrong(null, '', 'the document is empty: it begins with "version: v1"');
    return nothing;
  }
  const what = 'a map that begins with "version: v1"';
  const fields = fieldsOf(document, document.resolve(root, ''), '', PARTS, what);
  if (!fields) return nothing;
  const version = fields.get('version');
  const found = document.text(version?.node ?? null, 'version');
  if (found !== undefined && found !== 'v1') {
    const is = found === '' ? 'is missing' : `is ${JSON.stringify(cut(found))}`;
    document.wrong(version?.node ?? root, 'version', `${is}: the only version is v1`);
  }
  const { node = null } = fields.get('volumePolicies') ?? {};
  const elements = document.elements(node, 'volumePolicies', 'a list of rules') ?? [];
  const rules = elements.flatMap((element, i) => readRule(document, element, i + 1) ?? []);
  return { rules, filters: readFilters(document, fields) };
}

interface Element {
  readonly node: Node | null;
  readonly path: string;
}

function readRule(
  document: YamlDocument,
  { node, path }: Element,
  number: number,
): VolumeRule | undefined {
  if (document.isNull(node)) {
    document.warn(node, path, 'is empty, and Velero passes over it; remove it');
    return undefined;
  }
  const fields = fieldsOf(document, node, path, ['conditions', 'action'], 'a rule');
  if (!fields) return undefined;
  const conditions = readConditions(
    document,
    fields.get('conditions')?.node ?? null,
    `${path}.conditions`,
  );
  const action = readAction(document, fields.get('action'), node, `${path}.action`);
  return action && { conditions, action, place: document.placeOf(node), number };
}

function readAction(
  document: YamlDocument,
  field: Field | undefined,
  rule: Node | null,
  path: string,
): PolicyAction | undefined {
  const types = orList(ACTION_TYPES);
  if (!field || document.isNull(field.node)) {
    document.wrong(
      field?.keyNode ?? rule,
      path,
      `is missing: write "action: {type: …}" with ${types}`,
    );
    return undefined;
  }
  const fields = fieldsOf(document, field.node, path, ['type', 'parameters'], 'a map with a type');
  if (!fields) return undefined;
  const { node = null } = fields.get('type') ?? {};
  const type = document.text(node, `${path}.type`);
  const parameters = fields.get('parameters');
  if (type === undefined) return undefined;
  if (!isActionType(type)) {
    const meant = nearest(type, ACTION_TYPES);
    const right = meant === undefined ? `it is ${types}` : `did you mean ${meant}?`;
    const is = type === '' ? 'is missing' : `${JSON.stringify(cut(type))} is no action`;
    document.wrong(node ?? field.keyNode, `${path}.type`, `${is}: ${right}`);
    return undefined;
  }
  if (!parameters || document.isNull(parameters.node)) return { type };
  return {
    type,
    parameters: readParameters(document, parameters.node, `${path}.parameters`, type),
  };
}

function readParameters(
  document: YamlDocument,
  node: Node | null,
  path: string,
  type: ActionType,
): Record<string, unknown> {
  const entries = document.entries(node, path) ?? [];
  const read = entries.map(({ key, keyNode, value }) => {
    const at = joined(path, key);
    const found = document.value(document.resolve(value, at), at);
    const actions = PARAMETERS.get(key);
    if (type === 'custom') return [key, found] as const;
    if (!actions) document.warn(keyNode, at, `nothing reads this parameter of ${type}`);
    else if (!actions.includes(type)) {
      document.wrong(keyNode, at, `is for the action ${orList(actions)}, and not for ${type}`);
    } else if (typeof found !== 'string' || found === '') {
      document.wrong(keyNode, at, 'must be the name as text');
    }
    return [key, found] as const;
  });
  return Object.fromEntries(read);
}

const CONDITIONS = [
  'capacity',
  'storageClass',
  'nfs',
  'csi',
  'volumeTypes',
  'pvcLabels',
  'pvcPhase',
  'pvcVolumeMode',
  'pvcAccessModes',
] as const;

function readConditions(document: YamlDocument, node: Node | null, path: string): Conditions {
  const fields =
    fieldsOf(document, node, path, CONDITIONS, 'a map of conditions') ?? new Map<string, Field>();
  const at = (
    key: (typeof CONDITIONS)[number],
  ): { node: Node | null; path: string; isThere: boolean } => ({
    node: fields.get(key)?.node ?? null,
    path: `${path}.${key}`,
    isThere: fields.has(key),
  });
  const known = (
    key: (typeof CONDITIONS)[number],
    words: Iterable<string>,
    what: string,
  ): string[] => readKnown(document, at(key), [...words], what);
  const nfs = readNfs(document, at('nfs'));
  const csi = readCsi(document, at('csi'));
  if (nfs && csi) {
    document.warn(fields.get('csi')?.keyNode, path, 'never holds: no volume is both nfs and csi');
  }
  return {
    capacity: readCapacity(document, at('capacity')),
    storageClass: readStorageClasses(document, at('storageClass')),
    nfs,
    csi,
    volumeTypes: known('volumeTypes', VOLUME_TYPES, 'a type of volume'),
    pvcLabels: readLabels(document, at('pvcLabels')),
    pvcPhase: known('pvcPhase', PHASES, 'a phase of PVCs'),
    pvcVolumeMode: readVolumeMode(document, at('pvcVolumeMode')),
    pvcAccessModes: readAccessModes(document, at('pvcAccessModes')),
  };
}

const PHASES = ['Pending', 'Bound', 'Lost'];
const VOLUME_MODES = ['Filesystem', 'Block'];
const ACCESS_MODES = ['ReadWriteOnce', 'ReadOnlyMany', 'ReadWriteMany', 'ReadWriteOncePod'];

interface At extends Element {
  readonly isThere: boolean;
}

function readCapacity(document: YamlDocument, { node, path }: At): Conditions['capacity'] {
  const text = document.isNull(node) ? '' : (document.conditionText(node, path) ?? '');
  const range = parseRange(text);
  if (typeof range !== 'string') return range;
  const isOne = parseQuantity(text.trim()) !== undefined;
  const hint = isOne
    ? `; "${text.trim()}," is at least that much, and "0,${text.trim()}" at most`
    : '';
  document.wrong(node, path, `${JSON.stringify(cut(text))} ${range}${hint}`);
  return { low: NO_QUANTITY, high: NO_QUANTITY };
}

/** Null elements are skipped, as in Velero. */
function readTexts(
  document: YamlDocument,
  { node, path }: Element,
): { text: string; node: Node | null; path: string }[] {
  const elements = document.elements(node, path, 'a list of texts') ?? [];
  return elements.flatMap((element) => {
    if (document.isNull(element.node)) {
      document.warn(element.node, element.path, 'is empty, and Velero passes over it; remove it');
      return [];
    }
    const text = document.conditionText(element.node, element.path);
    return text === null ? [] : [{ ...element, text }];
  });
}

function readKnown(
  document: YamlDocument,
  at: At,
  words: readonly string[],
  what: string,
): string[] {
  return readTexts(document, at).map(({ text, node, path }) => {
    if (!words.includes(text)) document.warn(node, path, unknownWord(text, words, what));
    return text;
  });
}

function unknownWord(text: string, words: readonly string[], what: string): string {
  const meant = nearest(text, words);
  const right =
    meant !== undefined
      ? `did you mean ${meant}?`
      : words.length > 9
        ? 'see the documentation of volume policies for all'
        : `there is ${orList(words)}`;
  return `${JSON.stringify(cut(text))} is not ${what} that is known: ${right}`;
}

function readStorageClasses(document: YamlDocument, at: At): string[] {
  return readTexts(document, at).map(({ text, node, path }) => {
    if (text === '')
      document.warn(node, path, 'never holds: a volume without a class matches no storageClass');
    return text;
  });
}

function readNfs(document: YamlDocument, { node, path, isThere }: At): Conditions['nfs'] {
  if (!isThere || document.isNull(node)) return undefined;
  const fields = fieldsOf(document, node, path, ['server', 'path']);
  const text = (key: string): string => textIn(document, fields, key, path);
  return { server: text('server'), path: text('path') };
}

function textIn(
  document: YamlDocument,
  fields: Map<string, Field> | undefined,
  key: string,
  path: string,
): string {
  const { node = null } = fields?.get(key) ?? {};
  return document.isNull(node) ? '' : (document.conditionText(node, `${path}.${key}`) ?? '');
}

function readCsi(document: YamlDocument, { node, path, isThere }: At): Conditions['csi'] {
  if (!isThere || document.isNull(node)) return undefined;
  const fields = fieldsOf(document, node, path, ['driver', 'volumeAttributes']);
  const driver = textIn(document, fields, 'driver', path);
  const attributes = fields?.get('volumeAttributes');
  const at = `${path}.volumeAttributes`;
  const volumeAttributes = new Map<string, string>();
  for (const { key, value } of document.entries(attributes?.node ?? null, at) ?? []) {
    volumeAttributes.set(key, labelText(document, value, joined(at, key)));
  }
  if (driver === '' && attributes && !document.isNull(attributes.node)) {
    document.wrong(
      attributes.keyNode,
      at,
      'needs the driver beside it, such as "driver: ebs.csi.aws.com"',
    );
  }
  return { driver, volumeAttributes };
}

const labelText = (document: YamlDocument, value: Node | null, path: string): string => {
  const node = document.resolve(value, path);
  return document.isNull(node) ? '' : (document.conditionText(node, path) ?? '');
};

function readLabels(document: YamlDocument, { node, path, isThere }: At): Map<string, string> {
  const labels = new Map<string, string>();
  if (!isThere) return labels;
  if (document.isNull(node)) {
    document.wrong(
      node,
      path,
      'must be a map of labels, and is empty; remove it if labels do not matter',
    );
    return labels;
  }
  for (const { key, keyNode, value } of document.entries(node, path, 'a map of labels') ?? []) {
    const at = joined(path, key);
    const name = document.plain(keyNode);
    if (typeof name !== 'string')
      document.wrong(keyNode, at, `the key is no text: write "${cut(key)}" in quotes`);
    labels.set(key, labelText(document, value, at));
  }
  return labels;
}

function readVolumeMode(document: YamlDocument, { node, path, isThere }: At): string {
  if (!isThere) return '';
  const value = document.plain(node);
  if (typeof value !== 'string') {
    document.wrong(
      node,
      path,
      `must be ${orList(VOLUME_MODES)}, and is ${document.describe(node)}`,
    );
    return '';
  }
  if (value !== '' && !VOLUME_MODES.includes(value)) {
    document.warn(node, path, unknownWord(value, VOLUME_MODES, 'a volume mode'));
  }
  return value;
}

/** Velero accepts only strings here; its other lists accept numbers too. */
function readAccessModes(document: YamlDocument, { node, path, isThere }: At): string[] {
  if (!isThere) return [];
  const what = `a list of access modes, such as [${ACCESS_MODES[0] ?? ''}]`;
  if (document.isNull(node)) {
    document.wrong(
      node,
      path,
      `must be ${what}, and is empty; remove it if the modes do not matter`,
    );
    return [];
  }
  return (document.elements(node, path, what) ?? []).map((element) => {
    const value = document.plain(element.node);
    if (typeof value !== 'string') {
      document.wrong(
        element.node,
        element.path,
        `must be text, and is ${document.describe(element.node)}`,
      );
      return '';
    }
    if (!ACCESS_MODES.includes(value)) {
      document.warn(element.node, element.path, unknownWord(value, ACCESS_MODES, 'an access mode'));
    }
    return value;
  });
}
