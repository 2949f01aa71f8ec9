import { parseVolumePolicies } from '../../../src/volume-policy/index.ts';
import { askVelero } from './answers.ts';

/** Values as people and hostile authors write them. */
export const SCALARS: readonly string[] = [
  ...['1', '017', '0o17', '0x1F', '0X1f', '0b101', '-0x10', '+12', '08', '1_000', '1_0.5_0', '1__2'],
  ...['1.50', '1.10', '100000.5', '1e6', '1e5', '123456.5', '1234567.5', '1e-5', '0.0001', '0.00001'],
  ...['1e400', '-0.0', '.5', '5.', '.inf', '-.INF', '.nan', '+.inf', '.NAN', '12e03', '1e+06', '0', '00'],
  ...['-0', '0x', '0o8', '_1', '1_', '1:30', '0.1.2', '18446744073709551615', '18446744073709551616'],
  ...['-9223372036854775809', 'true', 'True', 'TRUE', 'tRUE', 'yes', 'no', 'on', 'y', 'null', 'Null', '~'],
  ...['2001-12-14', '2001-12-14T21:59:43.10-05:00', '2001-12-14t21:59:43Z', '2001-12-14 21:59:43'],
  ...['2001-12-14 21:59:43.123456789', '2001-2-3', '2001-02-30', '2001-12-14T21:59:43'],
  ...['2001-12-14 21:59:43Z', '2001-12-14T21:59:43+00:00', '2001-12-14T1:2:3Z', '"017"', "'x'"],
  ...['!!str 017', '!!int 017', '!!float 1', '!!int "5"', '<<', '='],
];

const documentWith = (scalar: string): string =>
  `version: v1\nvolumePolicies:\n- conditions: {pvcLabels: {v: ${scalar}}}\n  action: {type: skip}\n`;

/** The text that a scalar becomes. */
export const textOf = (scalar: string): string | undefined =>
  parseVolumePolicies(documentWith(scalar)).rules[0]?.conditions.pvcLabels.get('v');

/** Each scalar with the text that Velero makes of it: that of the label which it finds by it. */
export function ofScalars(program: string, scalars: readonly string[]): [string, string][] {
  const texts = scalars.map((scalar) => textOf(scalar) ?? '');
  const claims = texts.map((v, i) => ({
    metadata: { name: `pvc-${i}`, namespace: 'app', labels: { v } },
    spec: {},
  }));
  const cases = scalars.map((scalar) => ({ policies: documentWith(scalar) }));
  const answers = askVelero(program, { volumes: [], claims, pods: [] }, cases);
  return scalars.map((scalar, i) => {
    const { claimSnapshots = [], error = '' } = answers[i] ?? {};
    // What no policy is about has no volume, and is an error.
    const found = claimSnapshots.findIndex((answer) => answer === 'no');
    const text = claimSnapshots[i] === 'no' ? texts[i] : texts[found];
    return [scalar, text ?? `refused: ${error}`];
  });
}
