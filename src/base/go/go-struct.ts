import { define, lookup } from '../own-properties.ts';
/** How a field of a Go struct is written as JSON. */
export interface GoField {
  /** Written if there is no value. If undefined, the field is omitted (`omitempty`). */
  readonly zero: unknown;
  /** Orders the fields of the value. */
  readonly inside: (value: unknown) => unknown;
  readonly isMap?: boolean;
}

/** A map, whose keys Go sorts. Omitted if empty, unless `zero` is given. */
export const mapField = (zero?: null): GoField => ({
  zero,
  inside: (value) => new Map(Object.entries(value as object)),
  isMap: true,
});

type Fields = Readonly<Record<string, GoField>>;
const same = (value: unknown): unknown => value;

/** Omitted if empty: `json:"name,omitempty"`. */
export const omitEmpty: GoField = { zero: undefined, inside: same };
/** Always written: `json:"name"`. */
export const always = (zero: unknown): GoField => ({ zero, inside: same });
/** A pointer to a struct. Omitted if nil. */
export const optional = (struct: GoStruct): GoField => ({ zero: undefined, inside: struct });
/** A struct that is always written. */
export const nested = (struct: GoStruct): GoField => ({ zero: struct({}), inside: struct });
/** A slice of structs. `null` if nil. */
export const listOf = (struct: GoStruct): GoField => ({
  zero: null,
  inside: (value) => (Array.isArray(value) ? value.map(struct) : value),
});

/** Orders the fields of an object like Go. Unknown fields stay, at the end. */
export type GoStruct = (value: unknown) => unknown;

/**
 * The field order and omissions of a Go struct (encoding/json), for {@link goJson}. Keeps fields of
 * newer programs. Returns other values than objects unchanged.
 */
export function goStruct(fields: Fields): GoStruct {
  const known = Object.entries(fields);
  return (value) => {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return value;
    const given = value as Readonly<Record<string, unknown>>;
    const result: Record<string, unknown> = {};
    for (const [name, { zero, inside, isMap = false }] of known) {
      const field = lookup(given, name);
      if (zero === undefined && (isEmpty(field) || (isMap && hasNoKeys(field)))) continue;
      define(result, name, field === undefined || field === null ? zero : inside(field));
    }
    for (const [name, field] of Object.entries(given)) {
      if (!Object.hasOwn(fields, name)) define(result, name, field);
    }
    return result;
  };
}

const hasNoKeys = (value: unknown): boolean => Object.keys(value as object).length === 0;

/** Values that `omitempty` omits, except empty maps. A pointer to an empty struct is written. */
const isEmpty = (value: unknown): boolean =>
  value === undefined ||
  value === null ||
  value === '' ||
  value === 0 ||
  value === 0n ||
  value === false ||
  (Array.isArray(value) && value.length === 0);
