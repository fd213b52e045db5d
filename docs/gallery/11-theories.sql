-- Three theories of the same neurons
-- Accuracy on addition when every late neuron takes the value that a theory predicts: heuristics
-- (bag), a helix, or Fourier components (waves). All theories have the same number of parameters
-- per neuron.
select parameters, value as accuracy, theory
from theories
where
    subject = $subject and operator = 'add' and what = 'accuracy'
    and theory in ('bag', 'helix', 'waves')
order by parameters, theory
