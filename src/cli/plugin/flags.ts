/** The flags of `velero server` that its plugins receive and that are read here. */
export interface HostFlags {
  readonly logLevel: string;
  /** `EnableCSI`: Velero's own actions replace our CSI actions. */
  readonly hasCsi: boolean;
}

/** Parses Go's pflag format. Ignores unknown flags, which change with Velero's versions. */
export function hostFlags(args: readonly string[]): HostFlags {
  // As in Velero (v1.18.3: pkg/cmd/util/flag/array.go): the last flag replaces earlier ones, and
  // blanks count.
  const features = valuesOf(args, 'features').at(-1)?.split(',') ?? [];
  return {
    logLevel: valuesOf(args, 'log-level').at(-1) ?? 'info',
    hasCsi: features.includes('EnableCSI'),
  };
}

export function valuesOf(args: readonly string[], name: string): string[] {
  const flag = `--${name}`;
  return args.flatMap((arg, i) => {
    if (arg.startsWith(`${flag}=`)) return [arg.slice(flag.length + 1)];
    return arg === flag ? [args[i + 1] ?? ''] : [];
  });
}
