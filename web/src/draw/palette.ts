// The colours of classes and of sites, which colour-blind people can distinguish.

/** The colour of each class. */
export const CLASS_COLOURS: Record<string, string> = {
  parameters: '#0072b2',
  gradients: '#56b4e9',
  optimizer_state: '#009e73',
  activations: '#e69f00',
  temporaries: '#b8a100',
  workspace: '#cc79a7',
};
/** Everything else. */
export const OTHER = '#8c8c8c';
/** The colours of sites and the like, the largest first. (Without the colour of findings.) */
export const PALETTE = ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#b8a100', '#7a5cb0', '#a65628', '#4d7c0f'];
