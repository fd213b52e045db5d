-- Map of one neuron
-- A neuron whose label on addition is a range of the result: the activation is large on a diagonal
-- band of the operand pairs. Among such neurons, its strongest Fourier component has the largest
-- share of the map.
select op1, op2, activation
from activations
where
    subject = $subject and operator = 'add'
    and (layer, neuron) = (
        select (layer, neuron)
        from labels join spectra using (subject, operator, layer, neuron)
        where subject = $subject and operator = 'add' and labels.rank = 1 and spectra.rank = 1
        order by kind = 'range' and quantity = 'result' desc, share desc, layer, neuron
        limit 1
    )
order by op1, op2
