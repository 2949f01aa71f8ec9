import { CodedError, parseJsonExact } from '../../base/index.ts';
import { PATCH_FAILED, type PatchOperation } from '../../kube/index.ts';

/** An operation in a rule: every value is a text. */
export interface WrittenOperation {
  readonly operation: string;
  readonly from: string;
  readonly path: string;
  readonly value: string;
}

/**
 * Parses an operation. Velero (internal/resourcemodifiers/json_patch.go, ToString) writes its parts
 * into a text and parses it as JSON. Quoted parts may have JSON's escapes, and other parts must be
 * JSON. Throws `PATCH_FAILED` if the text is not JSON.
 */
export function operationOf({ operation, from, path, value }: WrittenOperation): PatchOperation {
  return {
    // Velero's check accepts `Add`, and then fails on every item.
    op: operation.toLowerCase(),
    from: parsed(`"${from}"`) as string,
    path: parsed(`"${path}"`) as string,
    value: valueOf(value),
  };
}

function valueOf(value: string): unknown {
  const isQuoted = value.startsWith('"') && value.endsWith('"');
  if (isQuoted) return parsed(`"${value.replace(/^"/, '').replace(/"$/, '')}"`);
  return parsed(isRaw(value) ? value : `"${value}"`);
}

const isRaw = (value: string): boolean =>
  value === 'null' || /^(true|false)$/i.test(value) || /^[{[]/.test(value) || isGoFloat(value);

/** strconv.ParseFloat accepts more numbers than JSON. */
function isGoFloat(text: string): boolean {
  if (/^[+-]?(inf|infinity)$/i.test(text) || /^nan$/i.test(text)) return true;
  if (/^[+-]?0x_?([0-9a-f_]+\.?[0-9a-f_]*|\.[0-9a-f_]+)p[+-]?\d+$/i.test(text)) return true;
  const isDecimal = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text);
  return isDecimal && Number.isFinite(Number(text));
}

function parsed(text: string): unknown {
  try {
    const list = parseJsonExact(`[${text}]`) as unknown[];
    // A comma in it would add parts to the text.
    if (list.length === 1) return list[0];
  } catch (cause) {
    throw new CodedError(PATCH_FAILED, 'error in decoding json patch invalid state detected', {
      cause,
    });
  }
  throw new CodedError(PATCH_FAILED, 'error in decoding json patch invalid state detected');
}
